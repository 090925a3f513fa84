"""The compiled programs of an engine: one prefill for each row bucket, one decode for each form.

All are compiled ahead of time from abstract arguments. A compiled program refuses other shapes, so
nothing can compile between steps. What the steps keep for each slot on the device lives here;
`steps.py` has the functions that are compiled.
"""

import threading
import time
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
from dsinfer_jax.engine.drafter import Drafter
from dsinfer_jax.engine.drafters import make_drafter
from dsinfer_jax.engine.draws import Draws, idle_draws
from dsinfer_jax.engine.engine_config import DecodeForm, EngineConfig
from dsinfer_jax.engine.packing import Packing
from dsinfer_jax.engine.request import Request, TopLogprobs
from dsinfer_jax.engine.sampler import Sample
from dsinfer_jax.engine.slot_state import mask_words, set_slot, slot_entry
from dsinfer_jax.engine.steps import (
    DecodeInputs,
    EngineState,
    Outcome,
    PrefillInputs,
    Step,
    decode_step,
    empty_engine_state,
    idle_inputs,
    outcome_packing,
    prefill_step,
)
from dsinfer_jax.model import cache as model_cache
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket, Slice, prefill_plan

Array = jax.Array
Leaf = jax.Array | np.ndarray

_COMPILE_THREADS = 2
_COMPILE_STACK_BYTES = 64 << 20  # the compiler recurses over large graphs


@dataclass(frozen=True)
class ProgramReport:
    """One line of the start-up report.

    Attributes:
        name: such as "prefill 256".
        bucket: its shapes.
        trace_seconds: tracing and lowering.
        compile_seconds: compiling, or reading from the persistent cache.
        from_cache: whether the persistent cache had it.
        temporary_bytes: memory it needs beside weights and cache.
    """

    name: str
    bucket: Bucket
    trace_seconds: float
    compile_seconds: float
    from_cache: bool
    temporary_bytes: int

    def __str__(self) -> str:
        source = "from the cache" if self.from_cache else "compiled"
        return (
            f"{self.name:14} {self.bucket.sequences} sequences, {self.bucket.table_width} blocks "
            f"each: traced {self.trace_seconds:.1f} s, {source} {self.compile_seconds:.1f} s, "
            f"{self.temporary_bytes / 1e6:.0f} MB of temporaries"
        )


@dataclass(frozen=True)
class _Shape:
    """A program to build."""

    name: str
    bucket: Bucket
    function: Callable[..., Step]  # of steps.py
    example: Any  # its inputs, for structure and shapes
    masks: int  # how many it takes


@dataclass(frozen=True)
class _Program:
    compiled: Any
    inputs: Packing
    outcome: Packing
    bucket: Bucket
    report: ProgramReport
    open_masks: Array  # every token allowed in every row; stays on the device


@dataclass(frozen=True)
class Handle:
    """A step under way."""

    packed: Array
    packing: Packing

    @property
    def ready(self) -> bool:
        """Whether the device is done with it."""
        return bool(self.packed.is_ready())  # type: ignore[attr-defined]

    def read(self) -> Outcome:
        """Its outcome on the host (numpy); waits until the step is done."""
        return self.packing.unpack_host(np.asarray(self.packed))


class Programs:
    """Every program of an engine, and the start-up report.

    Args:
        params: the weights, or their abstract tree: only shapes matter here.
        progress: called with one line before each program compiles.
        drafter: None: the one that `sizes` names.

    Attributes:
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
    ) -> None:
        self._config, self._sizes = config, sizes
        self._drafter = drafter or make_drafter(sizes, config, numerics)
        abstract_params = jax.tree.map(_abstract, params)
        abstract_cache = model_cache.abstract(config, sizes.cache_sizes, numerics)
        empty = empty_engine_state(sizes.slots, config.vocab_size, self._drafter)
        abstract_state = jax.tree.map(_abstract, empty)

        def build(shape: _Shape) -> _Program:
            if progress is not None:
                progress(f"preparing the program {shape.name!r}")
            inputs = Packing(shape.example)
            outcome = outcome_packing(shape.bucket.outputs, sizes.slots, self._drafter.places)
            step = shape.function(inputs, self._drafter, config, numerics)
            open_masks = np.full((shape.masks, mask_words(config.vocab_size)), -1, np.int32)
            compiled, report = _compile(
                shape, step, abstract_params, abstract_cache, abstract_state,
                jax.ShapeDtypeStruct((inputs.size,), jnp.int32), _abstract(open_masks),
            )  # fmt: skip
            open_masks = jax.device_put(open_masks)
            return _Program(compiled, inputs, outcome, shape.bucket, report, open_masks)

        start = time.perf_counter()
        shapes = [*_prefill_shapes(config, sizes), *_decode_shapes(sizes)]
        with _compile_threads() as threads:
            programs = list(threads.map(build, shapes))
        self._prefill = dict(zip(sizes.prefill_rows, programs))
        self._decode = dict(zip(sizes.decode_forms, programs[len(self._prefill) :]))
        self._set_sampling = _compile_set_slot(abstract_state.sampling)
        if abstract_state.drafter is not None:
            self._set_drafter = _compile_set_slot(abstract_state.drafter)
        self._state: EngineState = jax.device_put(empty)
        self.report = [program.report for program in programs]
        self.seconds = time.perf_counter() - start

    def begin(self, request: Request) -> None:
        """Prepare the state of the request's slot, before its next token is chosen.

        Tokens chosen later are noted by the steps.
        """
        assert request.slot is not None
        state = self._state
        entry = self._drafter.entry(request)
        if entry is not None:
            state = replace(state, drafter=self._set_drafter(
                state.drafter, *jax.device_put((np.int32(request.slot), entry))
            ))  # fmt: skip
        if request.params.adjusted:
            entry = slot_entry(request, self._config.vocab_size, self._config.eos_token_id)
            state = replace(state, sampling=self._set_sampling(
                state.sampling, *jax.device_put((np.int32(request.slot), entry))
            ))  # fmt: skip
        self._state = state

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
            draws: one for each wanted row, in the order of the slices and their outputs.
            masks: allowed tokens of each row, see `sampler.sample`; None: all.
        """
        program = self._prefill[rows]
        plan = prefill_plan(slices, program.bucket, self._config, self._sizes.truncation)
        draws_for = np.full(program.bucket.outputs, self._sizes.slots, np.int32)
        wanted = [part.slot for part in slices for _ in part.outputs]
        draws_for[: len(wanted)] = wanted
        return self._run(program, params, cache, PrefillInputs(plan, draws, draws_for), masks)

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
            masks: allowed tokens of each slot's newest token and drafts; None: all.
        """
        return self._run(self._decode[form], params, cache, inputs, masks)

    def rehearse(self, form: DecodeForm, running: int) -> DecodeInputs:
        """Inputs of a decode step of invented tokens in the first slots, all rows in use.

        What the steps keep for the slots is lost; no request may be running.
        """
        sizes, dice = self._sizes, np.random.default_rng(0)
        shape, places = (sizes.slots,), self._drafter.places
        invented = dice.integers(0, self._config.vocab_size, (sizes.slots, places + 1), np.int32)
        self._state = replace(self._state, **jax.device_put({
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
            budget=np.array(max(form.rows - running, 0), np.int32),
        )  # fmt: skip

    def prefill_bucket(self, rows: int) -> Bucket:
        return self._prefill[rows].bucket

    def _run(
        self,
        program: _Program,
        params: Params,
        cache: Cache,
        inputs: PrefillInputs | DecodeInputs,
        masks: np.ndarray | None,
    ) -> tuple[Cache, Handle]:
        packed = jax.device_put(program.inputs.pack(inputs))
        allowed = program.open_masks if masks is None else jax.device_put(masks)
        cache, self._state, packed = program.compiled(params, cache, self._state, packed, allowed)
        packed.copy_to_host_async()
        return cache, Handle(packed, program.outcome)


def top_entries(chosen: Sample, row: int, count: int) -> TopLogprobs:
    """The best `count` tokens of a row with their log-probabilities; of a sample on the host."""
    ids, logprobs = chosen.top_ids[row, :count], chosen.top_logprobs[row, :count]
    return list(zip(ids.tolist(), logprobs.tolist()))


def _prefill_shapes(config: ModelConfig, sizes: EngineConfig) -> Iterator[_Shape]:
    for rows in sizes.prefill_rows:
        bucket = sizes.prefill_bucket(rows)
        plan = prefill_plan([], bucket, config, sizes.truncation)
        example = PrefillInputs(
            plan, idle_draws(bucket.outputs), np.zeros(bucket.outputs, np.int32)
        )
        yield _Shape(f"prefill {rows}", bucket, prefill_step, example, bucket.outputs)


def _decode_shapes(sizes: EngineConfig) -> Iterator[_Shape]:
    example = idle_inputs(sizes.slots, sizes.table_width)
    for form in sizes.decode_forms:
        name = f"decode {sizes.slots} x {form.rows // sizes.slots}"
        if form.ragged:
            name = f"decode ragged {form.rows}"
        function = partial(decode_step, form)
        masks = sizes.slots * sizes.query_rows
        yield _Shape(name, sizes.decode_bucket(form), function, example, masks)


@contextmanager
def _compile_threads() -> Iterator[Executor]:
    """Two threads: one program is traced while another compiles. Large graphs need large stacks."""
    before = threading.stack_size(_COMPILE_STACK_BYTES)
    try:
        with ThreadPoolExecutor(_COMPILE_THREADS) as threads:
            yield threads
    finally:
        threading.stack_size(before)


def _compile_set_slot(abstract_state: Any) -> Any:
    """A program that writes one slot of a tree whose leaves have slots first."""
    entry = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), abstract_state
    )
    slot = jax.ShapeDtypeStruct((), jnp.int32)
    return _jax.jit(set_slot, donate=("state",)).lower(abstract_state, slot, entry).compile()


def _compile(shape: _Shape, step: Step, *arguments: Any) -> tuple[Any, ProgramReport]:
    events = _jax.compile_events()
    hits = events.hits_of_thread
    start = time.perf_counter()
    lowered = _jax.jit(step, donate=("cache", "state")).lower(*arguments)
    traced = time.perf_counter()
    compiled = lowered.compile()
    report = ProgramReport(
        name=shape.name,
        bucket=shape.bucket,
        trace_seconds=traced - start,
        compile_seconds=time.perf_counter() - traced,
        from_cache=events.hits_of_thread > hits,
        temporary_bytes=int(compiled.memory_analysis().temp_size_in_bytes),
    )
    return compiled, report


def _abstract(leaf: Leaf) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
