"""Training of the draft block: the target stands still (speculative.md 3.6)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from demo_training import draft, model, weights
from demo_training.data import Row
from demo_training.train import Plan, Stage, State, balanced, model_batch
from dsinfer_jax import _jax
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.params import DraftParams, Params

Array = jax.Array

STAGES = (Stage("draft", 1.0, 3, sparse=True, stored=True),)
BLOCKS = 48  # of every row
CROSS_ENTROPY, DISTANCE, CONFIDENCE = 0.1, 0.9, 1.0  # weights of the losses
PLACES_DECAY = 5.0  # later places matter less: exp(-place / 5)
BALANCE_SPEED = 1e-2  # as in `train`; rows are alike at the start


class Metrics(NamedTuple):
    loss: Array
    overlap: Array  # mean acceptance when tokens are drawn
    accepted_length: Array  # mean of greedy blocks, bonus included
    confidence_error: Array  # mean distance of estimated from true acceptance
    least_load: Array
    dropped: Array


def losses(
    said: draft.Laws, target_logits: Array, blocks: draft.Blocks
) -> tuple[Array, dict[str, Array]]:
    """The loss of some blocks, and what the metrics are made of.

    Args:
        target_logits: [batch, blocks, places, vocab] of the same places.
    """
    log_draft = jax.nn.log_softmax(said.logits, axis=-1)
    target = jax.nn.softmax(target_logits, axis=-1)
    distance = jnp.sum(jnp.abs(target - jnp.exp(log_draft)), axis=-1)
    acceptance = jax.lax.stop_gradient(1 - distance / 2)
    true_tokens = blocks.tokens[..., 1:, None]
    surprise = -jnp.take_along_axis(log_draft, true_tokens, axis=-1)[..., 0]
    confidence = optax.sigmoid_binary_cross_entropy(said.confidences, acceptance)
    each = CROSS_ENTROPY * surprise + DISTANCE * distance + CONFIDENCE * confidence
    places = jnp.arange(blocks.counts.shape[-1])
    weight = jnp.exp(-places / PLACES_DECAY) * blocks.counts
    loss = jnp.sum(each * weight) / jnp.maximum(jnp.sum(weight), 1e-9)

    def mean(value: Array) -> Array:
        return jnp.sum(value * blocks.counts) / jnp.maximum(jnp.sum(blocks.counts), 1)

    agrees = jnp.argmax(said.logits, axis=-1) == jnp.argmax(target_logits, axis=-1)
    whole = blocks.counts[..., -1]  # blocks that do not reach the end of an answer
    accepted = 1 + jnp.sum(jnp.cumprod(agrees, axis=-1), axis=-1)
    return loss, {
        "overlap": mean(acceptance),
        "accepted_length": jnp.sum(accepted * whole) / jnp.maximum(jnp.sum(whole), 1),
        "confidence_error": mean(jnp.abs(jax.nn.sigmoid(said.confidences) - acceptance)),
    }


class DraftSteps:
    """The steps of the draft's training, in the form that `train` takes.

    Args:
        target: the trained float tree; its own draft, if any, is not looked at.
        config: with the draft block.

    Attributes:
        first: the state before the first step.
    """

    def __init__(
        self, config: ModelConfig, plan: Plan, token_map: np.ndarray, target: Params
    ) -> None:
        self.plan, self._config = plan, config
        initial = weights.initial(config, plan.seed, token_map)
        self._whole = replace(target, draft=initial.draft)
        self._target = replace(weights.as_stored(self._whole, config), draft=None)
        self.first = State(initial.draft, plan.optimiser().init(initial.draft), 0)
        self._compiled: dict[bool, Any] = {}

    def take(self, state: State, rows: Row) -> tuple[State, Metrics]:
        """The next step. The state is given away."""
        long = self.plan.is_long(state.step)
        if long not in self._compiled:
            self._compiled[long] = _step_function(self._config, self.plan)
        key = jax.random.fold_in(jax.random.key(self.plan.seed), state.step)
        trained, optimiser, metrics = self._compiled[long](
            state.params, state.optimiser, self._target, model_batch(rows, long), key
        )
        return State(trained, optimiser, state.step + 1), metrics

    def whole(self, state: State) -> Params:
        """The float tree of target and draft, with its hashes."""
        return replace(self._whole, draft=state.params)


def _step_function(config: ModelConfig, plan: Plan) -> Callable[..., Any]:
    optimiser, form = plan.optimiser(), model.Form(sparse=True, rounded=True)
    assert config.draft is not None
    places = config.draft.block_size

    def step(
        trained: DraftParams, state: Any, target: Params, batch: model.Batch, key: Array
    ) -> tuple[DraftParams, Any, Metrics]:
        logits, _, features = model.forward_with_features(target, batch, config, form)
        assert features is not None
        blocks = draft.blocks_of(batch, BLOCKS, places, key)
        rows = blocks.anchors[..., None] + jnp.arange(places)
        of_blocks = jax.vmap(lambda one, at: one[at])(logits, rows)

        def loss_of(trained: DraftParams) -> tuple[Array, tuple[dict[str, Array], draft.Laws]]:
            params = weights.as_stored(replace(target, draft=trained), config, "draft")
            said = draft.laws(params, features, batch, blocks, config)
            loss, found = losses(said, of_blocks, blocks)
            return loss, (found, said)

        (loss, (found, said)), gradient = jax.value_and_grad(loss_of, has_aux=True)(trained)
        updates, state = optimiser.update(gradient, state, trained)
        trained = optax.apply_updates(trained, updates)
        layers, least = balanced(trained.layers, said.expert_load, BALANCE_SPEED)
        metrics = Metrics(loss, **found, least_load=least, dropped=said.dropped)
        return replace(trained, layers=layers), state, metrics

    return _jax.jit(step, donate=("trained", "state"))
