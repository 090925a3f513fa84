"""The training loop: stages, the step, what is kept between them."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from demo_training import model, weights
from demo_training.data import Row
from dsinfer_jax import _jax
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.params import LayerParams, Params

Array = jax.Array

KEPT_ROWS = 256  # of a long row, at the end of its first document: the consumer half runs these
INDEX_WEIGHT = 0.1  # of the indexers' loss, which moves nothing but indexers
MATRICES = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b", "w1", "w2", "w3", "wgate", "wk", "main_proj"}
MATRIX_RATE = 2.0  # of Muon, as a multiple of Adam's rate
BALANCE_SPEED = 2e-3  # of the router's bias towards experts with too little load
CLIP = 1.0


@dataclass(frozen=True)
class Stage:
    """A part of the training.

    Attributes:
        share: of all steps.
        long_every: every so many steps one batch of long rows; 0: never.
        sparse: attend to chosen keys only.
        stored: weights, cached keys and what enters products have the values of their stored
            formats.
    """

    name: str
    share: float
    long_every: int
    sparse: bool = False
    stored: bool = False


STAGES = (
    Stage("short", 0.40, 0),
    Stage("long", 0.38, 2),
    Stage("sparse", 0.22, 2, sparse=True, stored=True),
)


@dataclass(frozen=True)
class Plan:
    """How long and how fast.

    Attributes:
        steps: of all stages together.
        peak: the highest learning rate; it rises for 2 % of the steps and falls to a twentieth.
        stages: one after another.
    """

    steps: int
    peak: float = 3e-3
    seed: int = 0
    stages: tuple[Stage, ...] = STAGES

    def stage(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        done = 0.0
        for stage in self.stages:
            done += stage.share
            if step < round(done * self.steps):
                return stage
        return self.stages[-1]

    def is_long(self, step: int) -> bool:
        every = self.stage(step).long_every
        return every > 0 and step % every == every - 1

    def optimiser(self) -> optax.GradientTransformation:
        """Muon for the matrices that rows pass through, Adam for everything else."""

        def rate(peak: float) -> optax.Schedule:
            return optax.warmup_cosine_decay_schedule(
                0.0, peak, max(self.steps // 50, 1), self.steps, peak / 20
            )

        def dimensions(params: Any) -> Any:
            return jax.tree_util.tree_map_with_path(_matrix_axes, params)

        return optax.chain(
            optax.clip_by_global_norm(CLIP),
            optax.contrib.muon(
                rate(MATRIX_RATE * self.peak), weight_decay=0.02, consistent_rms=0.2, adam_b2=0.98,
                adam_learning_rate=rate(self.peak), muon_weight_dimension_numbers=dimensions,
            ),
        )  # fmt: skip


def _matrix_axes(path: Any, leaf: Array) -> Any:
    """The last two axes of a matrix, in front of which layers and experts are counted."""
    if path[-1].name not in MATRICES:
        return None
    return optax.contrib.MuonDimensionNumbers(
        reduction_axis=leaf.ndim - 1, output_axis=leaf.ndim - 2
    )


class State(NamedTuple):
    """What a step changes."""

    params: Any  # what is trained: a float tree without hashes, or a part of one
    optimiser: Any
    step: int


class Trainer(Protocol):
    """What `train` runs.

    Attributes:
        first: the state before the first step.
    """

    plan: Plan
    first: State

    def take(self, state: State, rows: Row) -> tuple[State, Any]:
        """The next step, and a named tuple of its metrics. The state is given away."""

    def whole(self, state: State) -> Params:
        """The float tree with its hashes."""


class Metrics(NamedTuple):
    loss: Array  # of the tokens of answers, nats
    index: Array
    recall: Array
    dropped: Array
    least_load: Array  # of any expert, as a multiple of its share


def balanced(layers: LayerParams, load: Array, speed: float) -> tuple[LayerParams, Array]:
    """Layers whose routers lean towards experts with too little load, and the least load of any
    expert as a multiple of its share. load [layers, experts] share of pairs."""
    gate, share = layers.gate, 1 / load.shape[-1]
    bias = gate.bias + speed * jnp.sign(share - load)
    return replace(layers, gate=replace(gate, bias=bias)), jnp.min(load) / share


def step_function(
    config: ModelConfig, plan: Plan, hashes: Any, stage: Stage
) -> Callable[[Params, Any, model.Batch], tuple[Params, Any, Metrics]]:
    """One step of a stage, compiled for each shape of batch."""
    form = model.Form(sparse=stage.sparse, rounded=stage.stored)
    optimiser = plan.optimiser()

    def loss_of(params: Params, batch: model.Batch) -> tuple[Array, tuple[Array, model.Losses]]:
        params = replace(params, hashes=hashes)
        if stage.stored:
            params = weights.as_stored(params, config)
        logits, losses = model.forward(params, batch, config, form)
        targets = batch.of_kept(jnp.roll(batch.token_ids, -1, axis=1))
        weight = batch.of_kept(batch.loss_weight)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        surprise = jax.nn.logsumexp(logits, axis=-1) - chosen
        loss = jnp.sum(surprise * weight) / jnp.sum(weight)
        answers = (weight == 1).astype(jnp.float32)
        answer_loss = jnp.sum(surprise * answers) / jnp.maximum(jnp.sum(answers), 1)
        return loss + INDEX_WEIGHT * losses.index, (answer_loss, losses)

    def step(params: Params, state: Any, batch: model.Batch) -> tuple[Params, Any, Metrics]:
        gradient, (loss, losses) = jax.grad(loss_of, has_aux=True)(params, batch)
        updates, state = optimiser.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        layers, least = balanced(params.layers, losses.expert_load, BALANCE_SPEED)
        return replace(params, layers=layers), state, Metrics(
            loss, losses.index, losses.index_recall, losses.dropped, least
        )  # fmt: skip

    return _jax.jit(step, donate=("params", "state"))


def model_batch(rows: Row, long: bool) -> model.Batch:
    """Rows of the data as the model takes them."""
    kept = None
    if long:
        ends = np.sum(rows.document == 0, axis=1)
        first = np.maximum(ends - KEPT_ROWS, 0)
        kept = jnp.asarray(first[:, None] + np.arange(KEPT_ROWS), jnp.int32)
    return model.Batch(*(jnp.asarray(leaf) for leaf in rows), kept)


class Steps:
    """The steps of a plan for one model, compiled when they are first needed.

    Attributes:
        first: the state before the first step.
    """

    def __init__(self, config: ModelConfig, plan: Plan, token_map: np.ndarray) -> None:
        self.plan, self._config = plan, config
        whole = weights.initial(config, plan.seed, token_map)
        self._hashes = whole.hashes  # not trained
        params = replace(whole, hashes=None)
        self.first = State(params, plan.optimiser().init(params), 0)
        self._compiled: dict[tuple[bool, bool], Any] = {}

    def take(self, state: State, rows: Row) -> tuple[State, Metrics]:
        """The next step. The state is given away."""
        stage = self.plan.stage(state.step)
        form = stage.sparse, stage.stored
        if form not in self._compiled:
            self._compiled[form] = step_function(self._config, self.plan, self._hashes, stage)
        batch = model_batch(rows, self.plan.is_long(state.step))
        params, optimiser, metrics = self._compiled[form](state.params, state.optimiser, batch)
        return State(params, optimiser, state.step + 1), metrics

    def whole(self, state: State) -> Params:
        """The float tree with its hashes."""
        return replace(state.params, hashes=self._hashes)


def train(
    steps: Trainer,
    batches: Callable[[int, bool], Row],
    folder: Path,
    *,
    stop_at: int | None = None,
    report_every: int = 10,
    save_every: int = 100,
    say: Callable[[str], None] = print,
) -> Params:
    """Train, or go on where the folder says; returns the float tree with its hashes.

    Args:
        batches: (step, long) -> rows, a pure function.
        folder: of `state.npz` and `log.jsonl`.
        stop_at: end before this step, as if interrupted.
    """
    plan = steps.plan
    folder.mkdir(parents=True, exist_ok=True)
    first = steps.first  # copied, because a step gives its state away
    params, optimiser = jax.tree.map(jnp.copy, (first.params, first.optimiser))
    state = load_state(folder, State(params, optimiser, first.step))
    last = min(plan.steps, stop_at or plan.steps)
    began, seen = time.perf_counter(), 0
    while state.step < last:
        stage, long = plan.stage(state.step), plan.is_long(state.step)
        rows = batches(state.step, long)
        state, metrics = steps.take(state, rows)
        seen += rows.token_ids.size
        if state.step % report_every == 0:
            entry: dict[str, Any] = {"step": state.step, "stage": stage.name, "long": long}
            entry |= {name: round(float(value), 4) for name, value in metrics._asdict().items()}
            seconds = time.perf_counter() - began
            entry |= {"tokens_per_second": round(seen / seconds), "seconds": round(seconds)}
            with (folder / "log.jsonl").open("a") as log:
                log.write(json.dumps(entry) + "\n")
            say(json.dumps(entry))
        if state.step % save_every == 0:
            save_state(folder, state)
    save_state(folder, state)
    return steps.whole(state)


def save_state(folder: Path, state: State) -> None:
    """Write the state; the file is replaced whole."""
    leaves = jax.tree.leaves((state.params, state.optimiser))
    arrays = {f"{place:05}": np.asarray(leaf) for place, leaf in enumerate(leaves)}
    unfinished = folder / "state.unfinished.npz"
    np.savez(unfinished, step=np.int64(state.step), **arrays)
    unfinished.replace(folder / "state.npz")


def load_state(folder: Path, like: State) -> State:
    """The saved state, or `like` if there is none.

    Raises:
        ValueError: the folder holds a run of another model.
    """
    path = folder / "state.npz"
    if not path.exists():
        return like
    with np.load(path) as stored:
        leaves, structure = jax.tree.flatten((like.params, like.optimiser))
        found = [stored[f"{place:05}"] for place in range(len(stored.files) - 1)]
        if [leaf.shape for leaf in found] != [leaf.shape for leaf in leaves]:
            raise ValueError(f"{path} is of another model; use another folder")
        params, optimiser = jax.tree.unflatten(structure, map(jnp.asarray, found))
        return State(params, optimiser, int(stored["step"]))


def seconds_of(folder: Path) -> int:
    """How long a run took, all calls together; what a call did after its last report is left
    out."""
    seconds = [entry["seconds"] for entry in read_log(folder)]
    ends = [now for now, after in zip(seconds, [*seconds[1:], 0]) if after <= now]
    return sum(ends)


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """Entries of a run, in order; steps that were done again come again."""
    with (folder / "log.jsonl").open() as log:
        yield from map(json.loads, log)
