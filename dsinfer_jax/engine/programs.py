"""The compiled programs of an engine: one prefill for each row bucket, one decode for each form.

All are compiled ahead of time from abstract arguments. A compiled program refuses other shapes, so
nothing can compile between steps. What the steps keep for each slot on the device lives here;
`steps.py` has the functions that are compiled.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax import _jax
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.compilation import (
    CompileTarget,
    Program,
    ProgramShape,
    abstract,
    compile_program,
    program_shapes,
)
from dsinfer_jax.engine.devices import Devices, make_devices
from dsinfer_jax.engine.drafter import Drafter
from dsinfer_jax.engine.drafters import make_drafter
from dsinfer_jax.engine.draws import Draws
from dsinfer_jax.engine.engine_config import DecodeForm, EngineConfig
from dsinfer_jax.engine.packing import named_leaves
from dsinfer_jax.engine.request import Request, TopLogprobs
from dsinfer_jax.engine.sampler import Sample
from dsinfer_jax.engine.slot_state import set_slot, slot_entry
from dsinfer_jax.engine.steps import (
    DecodeInputs,
    EngineState,
    Outcome,
    PrefillInputs,
    empty_engine_state,
    idle_inputs,
)
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Slice, prefill_plan

Array = jax.Array

_COMPILE_THREADS = 2
_COMPILE_STACK_BYTES = 64 << 20  # the compiler recurses over large graphs


@dataclass(frozen=True)
class Handle:
    """A step under way."""

    packed: Array
    unpack: Callable[[Array], Outcome]

    @property
    def ready(self) -> bool:
        """Whether the device is done with it."""
        return bool(self.packed.is_ready())  # type: ignore[attr-defined]

    def read(self) -> Outcome:
        """Its outcome on the host (numpy); waits until the step is done."""
        return self.unpack(self.packed)


class Programs:
    """Every program of an engine, and the start-up report.

    Args:
        params: the weights, or their abstract tree: only shapes matter here.
        progress: called with one line before each program compiles.
        drafter: None: the one that `sizes` names.
        devices: None: those that `sizes` names.

    Attributes:
        devices: what the programs run on.
        report: the start-up report, one entry for each program.
        seconds: how long all of them took together.
    """

    def __init__(
        self,
        params: Params,
        config: ModelConfig,
        numerics: Numerics,
        sizes: EngineConfig,
        progress: Callable[[str], None] | None = None,
        drafter: Drafter | None = None,
        devices: Devices | None = None,
    ) -> None:
        self._config, self._sizes = config, sizes
        self._drafter = drafter or make_drafter(sizes, config, numerics)
        self.devices = devices or make_devices(config, sizes, numerics)
        slots = sizes.slots * sizes.ranks
        empty = empty_engine_state(slots, config.vocab_size, self._drafter)
        self._state: EngineState = self.devices.by_rank(empty)
        target = CompileTarget(
            config, numerics, sizes, self._drafter, self.devices, params, self._state
        )

        def build(shape: ProgramShape) -> Program:
            if progress is not None:
                progress(f"preparing the program {shape.name!r}")
            return compile_program(shape, target)

        start = time.perf_counter()
        with _compile_threads() as threads:
            programs = list(threads.map(build, program_shapes(config, sizes)))
        self._prefill = dict(zip(sizes.prefill_rows, programs))
        self._decode = dict(zip(sizes.decode_forms, programs[len(self._prefill) :]))
        self._set_sampling = self._compile_set_slot(target.state.sampling)
        if target.state.drafter is not None:
            self._set_drafter = self._compile_set_slot(target.state.drafter)
        self._begun: list[tuple[str, np.ndarray]] = []  # what slots were given since the last step
        self.report = [program.report for program in programs]
        self.seconds = time.perf_counter() - start

    def begin(self, request: Request, slot: int) -> None:
        """Prepare the state of the request's slot, before its next token is chosen.

        Tokens chosen later are noted by the steps.

        Args:
            slot: over all ranks.
        """
        state = self._state
        entry = self._drafter.entry(request)
        if entry is not None:
            written = self._written(slot, entry)
            state = replace(state, drafter=self._set_drafter(state.drafter, *written))
        if request.params.adjusted:
            entry = slot_entry(request, self._config.vocab_size, self._config.eos_token_id)
            written = self._written(slot, entry)
            state = replace(state, sampling=self._set_sampling(state.sampling, *written))
        self._state = state

    def _written(self, slot: int, entry: Any) -> tuple[Any, Any]:
        """A slot and its entry on the devices."""
        self._begun += [(f"{name} of slot {slot}", leaf) for name, leaf in named_leaves(entry)]
        return self.devices.everywhere((np.int32(slot), entry))

    def prefill(
        self,
        params: Params,
        cache: Cache,
        rows: int,
        slices: Sequence[Slice],
        draws: Draws,
        masks: np.ndarray | None = None,
    ) -> tuple[Cache, Handle]:
        """Dispatch a prefill step in the bucket of `rows`. The cache is given away.

        Args:
            slices: with slots over all ranks.
            draws: of the rows that `wanted_rows` names, padded.
            masks: allowed tokens of each of these rows, see `sampler.sample`; None: all.
        """
        program, slots = self._prefill[rows], self._sizes.slots
        vectors = []
        for rank, own in enumerate(self._by_rank(draws)):
            some = [
                replace(part, slot=part.slot % slots)
                for part in slices if part.slot // slots == rank
            ]  # fmt: skip
            plan = prefill_plan(some, program.bucket, self._config, self._sizes.truncation)
            draws_for = np.full(program.bucket.outputs, slots, np.int32)
            wanted = [part.slot for part in some for _ in part.outputs]
            draws_for[: len(wanted)] = wanted
            vectors.append(program.inputs.pack(PrefillInputs(plan, own, draws_for)))
        return self._run(program, params, cache, vectors, masks)

    def wanted_rows(self, rows: int, slots: Sequence[int]) -> list[int]:
        """Rows of a prefill step's sample for the slots whose tokens it draws, over all ranks.

        Args:
            slots: over all ranks, in the order of the slices.
        """
        outputs, used = self._prefill[rows].bucket.outputs, Counter[int]()
        found = []
        for slot in slots:
            rank = slot // self._sizes.slots
            found.append(rank * outputs + used[rank])
            used[rank] += 1
        return found

    def sample_rows(self, rows: int) -> int:
        """Rows of the sample of a prefill step, over all ranks."""
        return self._prefill[rows].bucket.outputs * self._sizes.ranks

    def _by_rank(self, tree: Any) -> list[Any]:
        """A host tree whose leaves have the entries of all ranks first, divided."""
        ranks = self._sizes.ranks
        leaves, structure = jax.tree.flatten(tree)
        divided = [leaf.reshape(ranks, -1, *leaf.shape[1:]) for leaf in leaves]
        return [
            jax.tree.unflatten(structure, [leaf[rank] for leaf in divided]) for rank in range(ranks)
        ]

    def decode(
        self,
        params: Params,
        cache: Cache,
        form: DecodeForm,
        inputs: DecodeInputs,
        masks: np.ndarray | None = None,
    ) -> tuple[Cache, Handle]:
        """Dispatch a decode step. The cache is given away.

        Args:
            form: one of the engine's.
            inputs: of the slots of all ranks, with a budget for each rank.
            masks: allowed tokens of each slot's newest token and drafts; None: all.
        """
        program = self._decode[form]
        vectors = [program.inputs.pack(own) for own in self._by_rank(inputs)]
        return self._run(program, params, cache, vectors, masks)

    def proposals(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `LLMEngine.proposals`."""
        state = self._state
        kept = (jnp.asarray(leaf)[slots] for leaf in (state.start, state.drafts, state.draft_laws))
        starts, drafts, laws = map(self.devices.host, kept)
        return starts, drafts, laws

    def rehearse(self, form: DecodeForm, running: int) -> DecodeInputs:
        """Inputs of a decode step of invented tokens in the first slots, all rows in use.

        What the steps keep for the slots is lost; no request may be running.
        """
        sizes, dice = self._sizes, np.random.default_rng(0)
        shape, places = (sizes.slots,), self._drafter.places
        invented = dice.integers(0, self._config.vocab_size, (sizes.slots, places + 1), np.int32)
        self._state = replace(self._state, **self.devices.by_rank({
            "newest": invented[:, 0],
            "start": np.zeros(shape, np.int32),
            "drafts": invented[:, 1:],
            "draft_counts": np.full(shape, places, np.int32),
            "confidences": np.ones((sizes.slots, places), np.float32),
        }))  # fmt: skip
        inputs = idle_inputs(sizes.slots, sizes.table_width)
        active = np.arange(sizes.slots) < running
        return replace(
            inputs, active=active, last=np.full(shape, sizes.max_model_len - 1, np.int32),
            draft_limits=np.full(shape, places, np.int32),
            budget=np.full(1, max(form.rows - running, 0), np.int32),
        )  # fmt: skip

    def _run(
        self,
        program: Program,
        params: Params,
        cache: Cache,
        vectors: Sequence[np.ndarray],
        masks: np.ndarray | None,
    ) -> tuple[Cache, Handle]:
        devices = self.devices
        devices.check(program.report.name, self._parts(program, vectors, masks))
        self._begun = []
        packed = devices.stacked(vectors)
        allowed = program.open_masks if masks is None else devices.by_rank(masks)
        with devices.waiting():
            cache, self._state, packed = program.compiled(
                params, cache, self._state, packed, allowed, *devices.extra
            )
        packed.copy_to_host_async()
        unpack = partial(devices.read, packing=program.outcome, rows=program.bucket.outputs)
        return cache, Handle(packed, unpack)

    def _parts(
        self, program: Program, vectors: Sequence[np.ndarray], masks: np.ndarray | None
    ) -> Iterator[tuple[str, np.ndarray]]:
        """What the host gives to a step, by name."""
        yield from self._begun
        yield from program.inputs.named(vectors)
        yield "masks", np.zeros(0, np.int32) if masks is None else masks

    def _compile_set_slot(self, state: Any) -> Any:
        """A program that writes one slot of a tree whose leaves have slots first."""
        entry = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), state)
        slot, entry = jax.tree.map(abstract, self.devices.everywhere((np.int32(0), entry)))
        return _jax.jit(set_slot, donate=("state",)).lower(state, slot, entry).compile()


def top_entries(chosen: Sample, row: int, count: int) -> TopLogprobs:
    """The best `count` tokens of a row with their log-probabilities; of a sample on the host."""
    ids, logprobs = chosen.top_ids[row, :count], chosen.top_logprobs[row, :count]
    return list(zip(ids.tolist(), logprobs.tolist()))


@contextmanager
def _compile_threads() -> Iterator[Executor]:
    """Two threads: one program is traced while another compiles. Large graphs need large stacks."""
    before = threading.stack_size(_COMPILE_STACK_BYTES)
    try:
        with ThreadPoolExecutor(_COMPILE_THREADS) as threads:
            yield threads
    finally:
        threading.stack_size(before)
