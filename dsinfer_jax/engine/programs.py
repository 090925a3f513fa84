"""The compiled programs of an engine: one prefill for each row bucket, and one decode.

All are compiled ahead of time from abstract arguments. A compiled program refuses other shapes, so
nothing can compile between steps. The sampler is part of the program: only tokens, their
log-probabilities and failure marks come back. What it keeps for each slot lives here.

A program knows no request: it takes a plan and the draws of its output rows.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax import _jax
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.draws import Draws, idle_draws
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.packing import Packing
from dsinfer_jax.engine.request import Request, TopLogprobs
from dsinfer_jax.engine.sampler import Sample, sample
from dsinfer_jax.engine.sampling_params import MAX_TOP_LOGPROBS
from dsinfer_jax.engine.slot_state import (
    SlotState,
    empty_state,
    mask_words,
    set_slot,
    slot_entry,
)
from dsinfer_jax.model import cache as model_cache
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket, Plan, Slice, decode_plan, prefill_plan

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
    """A program to build; `example` is a plan of its bucket, for structure and shapes."""

    name: str
    bucket: Bucket
    example: Plan
    decodes: bool = False


@dataclass(frozen=True)
class _Program:
    compiled: Any
    packing: Packing
    bucket: Bucket
    report: ProgramReport
    open_masks: Array  # every token allowed in every row; stays on the device


class Programs:
    """Every program of an engine, and the start-up report.

    Args:
        params: the weights, or their abstract tree: only shapes matter here.
        progress: called with one line before each program compiles.

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
    ) -> None:
        self._config, self._sizes = config, sizes
        abstract_params = jax.tree.map(_abstract, params)
        abstract_cache = model_cache.abstract(config, sizes.cache_sizes, numerics)
        empty = empty_state(sizes.slots, config.vocab_size)
        abstract_state = jax.tree.map(_abstract, empty)
        newest = np.zeros(sizes.slots, np.int32)

        def build(shape: _Shape) -> _Program:
            if progress is not None:
                progress(f"preparing the program {shape.name!r}")
            outputs = shape.bucket.outputs
            packing = Packing((shape.example, idle_draws(outputs), np.zeros(outputs, np.int32)))
            step = _step_function(packing, shape.decodes, config, numerics)
            inputs = jax.ShapeDtypeStruct((packing.size,), jnp.int32)
            open_masks = _open_masks(shape.bucket.outputs, config.vocab_size)
            compiled, report = _compile(
                shape, step, abstract_params, abstract_cache, abstract_state, _abstract(newest),
                inputs, _abstract(open_masks),
            )  # fmt: skip
            return _Program(compiled, packing, shape.bucket, report, jax.device_put(open_masks))

        start = time.perf_counter()
        shapes = [*_prefill_shapes(config, sizes), _decode_shape(config, sizes)]
        with _compile_threads() as threads:
            *prefill, self._decode = threads.map(build, shapes)
        self._prefill = dict(zip(sizes.prefill_rows, prefill))
        self._set_slot = _compile_set_slot(abstract_state)
        self._state: SlotState = jax.device_put(empty)
        self._newest: Array = jax.device_put(newest)  # each slot's newest token
        self.report = [program.report for program in (*prefill, self._decode)]
        self.seconds = time.perf_counter() - start

    def begin(self, request: Request) -> None:
        """Prepare the sampler's state of the request's slot, before its next token is chosen.

        Only requests with `params.adjusted` need it. Tokens chosen later are counted by the steps.
        """
        assert request.slot is not None
        entry = slot_entry(request, self._config.vocab_size, self._config.eos_token_id)
        arguments = jax.device_put((np.int32(request.slot), entry))
        self._state = self._set_slot(self._state, *arguments)

    def prefill(
        self,
        params: Params,
        cache: Cache,
        rows: int,
        slices: Sequence[Slice],
        draws: Draws,
        masks: np.ndarray | None = None,
    ) -> tuple[Cache, Array]:
        """Dispatch a prefill step in the bucket of `rows`. The cache is given away.

        Args:
            draws: one for each wanted row, in the order of the slices and their outputs.
            masks: allowed tokens of each row, see `sampler.sample`; None: all.

        Returns:
            The cache and the packed sample; `read_sample` waits for it.
        """
        program = self._prefill[rows]
        plan = prefill_plan(slices, program.bucket, self._config, self._sizes.truncation)
        draws_for = np.full(program.bucket.outputs, self._sizes.slots)
        wanted = [part.slot for part in slices for _ in part.outputs]
        draws_for[: len(wanted)] = wanted
        return self._run(program, params, cache, plan, draws, draws_for, masks)

    def decode(
        self,
        params: Params,
        cache: Cache,
        start: np.ndarray,
        block_tables: np.ndarray,
        draws: Draws,
        masks: np.ndarray | None = None,
    ) -> tuple[Cache, Array]:
        """Dispatch a decode step: see `decode_plan`. The cache is given away.

        Each slot's newest token is on the device, where the step that drew it left it.
        """
        slots, query_rows = self._sizes.slots, self._sizes.query_rows
        token_ids = np.zeros((slots, query_rows), np.int32)
        plan = decode_plan(token_ids, start, block_tables, self._config)
        draws_for = np.where(start >= 0, np.arange(slots), slots)
        return self._run(
            self._decode, params, cache, plan, draws, np.repeat(draws_for, query_rows), masks
        )

    def prefill_bucket(self, rows: int) -> Bucket:
        return self._prefill[rows].bucket

    def _run(
        self,
        program: _Program,
        params: Params,
        cache: Cache,
        plan: Plan,
        draws: Draws,
        draws_for: np.ndarray,
        masks: np.ndarray | None,
    ) -> tuple[Cache, Array]:
        inputs = jax.device_put(program.packing.pack((plan, draws, draws_for.astype(np.int32))))
        allowed = program.open_masks if masks is None else jax.device_put(masks)
        cache, self._state, self._newest, packed = program.compiled(
            params, cache, self._state, self._newest, inputs, allowed
        )
        packed.copy_to_host_async()
        return cache, packed


def read_sample(packed: Array) -> Sample:
    """The sample of a step on the host (numpy); waits until the step is done."""
    host = np.asarray(packed)
    token_ids, logprobs, failed = host[:3]
    top_ids, top_logprobs = host[3 : 3 + MAX_TOP_LOGPROBS], host[3 + MAX_TOP_LOGPROBS :]
    return Sample(
        token_ids=token_ids,
        logprobs=logprobs.view(np.float32),
        failed=failed != 0,
        top_ids=top_ids.T,
        top_logprobs=top_logprobs.view(np.float32).T,
    )


def top_entries(chosen: Sample, row: int, count: int) -> TopLogprobs:
    """The best `count` tokens of a row with their log-probabilities; of a sample on the host."""
    ids, logprobs = chosen.top_ids[row, :count], chosen.top_logprobs[row, :count]
    return list(zip(ids.tolist(), logprobs.tolist()))


def _prefill_shapes(config: ModelConfig, sizes: EngineConfig) -> Iterator[_Shape]:
    for rows in sizes.prefill_rows:
        bucket = sizes.prefill_bucket(rows)
        yield _Shape(f"prefill {rows}", bucket, prefill_plan([], bucket, config, sizes.truncation))


def _decode_shape(config: ModelConfig, sizes: EngineConfig) -> _Shape:
    idle = decode_plan(
        np.zeros((sizes.slots, sizes.query_rows), np.int32),
        np.full(sizes.slots, -1, np.int32),
        np.zeros((sizes.slots, sizes.table_width), np.int32),
        config,
    )
    return _Shape(
        f"decode {sizes.slots} x {sizes.query_rows}", sizes.decode_bucket, idle, decodes=True
    )


@contextmanager
def _compile_threads() -> Iterator[Executor]:
    """Two threads: one program is traced while another compiles. Large graphs need large stacks."""
    before = threading.stack_size(_COMPILE_STACK_BYTES)
    try:
        with ThreadPoolExecutor(_COMPILE_THREADS) as threads:
            yield threads
    finally:
        threading.stack_size(before)


def _open_masks(rows: int, vocab_size: int) -> np.ndarray:
    return np.full((rows, mask_words(vocab_size)), -1, np.int32)


def _step_function(
    packing: Packing, decodes: bool, config: ModelConfig, numerics: Numerics
) -> Callable[..., Any]:
    def step(
        params: Params, cache: Cache, state: SlotState, newest: Array, inputs: Array, masks: Array
    ) -> tuple[Cache, SlotState, Array, Array]:
        plan, draws, draws_for = packing.unpack(inputs)
        if decodes:
            plan = _with_newest(plan, newest)
        cache, result = forward(params, cache, plan, config, numerics)
        chosen, state = sample(result.logits, draws, state, masks)
        newest = newest.at[draws_for].set(jnp.asarray(chosen.token_ids), mode="drop")
        return cache, state, newest, _packed(chosen)

    return step


def _with_newest(plan: Plan, newest: Array) -> Plan:
    """A decode plan whose slots' first rows are their newest tokens."""
    token_ids = jnp.asarray(plan.token_ids).reshape(len(newest), -1).at[:, 0].set(newest)
    return replace(plan, token_ids=token_ids.reshape(-1))


def _packed(chosen: Sample) -> Array:
    """A sample as int32 [3 + 2 x 20, rows]; `read_sample` is the inverse."""

    def bits(floats: Any) -> Array:
        return jax.lax.bitcast_convert_type(jnp.asarray(floats), jnp.int32)

    single = [chosen.token_ids, bits(chosen.logprobs), jnp.asarray(chosen.failed, jnp.int32)]
    lists = [jnp.asarray(chosen.top_ids).T, bits(chosen.top_logprobs).T]
    return jnp.concatenate([jnp.stack(single), *lists])


def _compile_set_slot(abstract_state: SlotState) -> Any:
    entry = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), abstract_state
    )
    slot = jax.ShapeDtypeStruct((), jnp.int32)
    return _jax.jit(set_slot, donate=("state",)).lower(abstract_state, slot, entry).compile()


def _compile(shape: _Shape, step: Callable[..., Any], *arguments: Any) -> tuple[Any, ProgramReport]:
    events = _jax.compile_events()
    hits = events.hits_of_thread
    start = time.perf_counter()
    lowered = _jax.jit(step, donate=("cache", "state", "newest")).lower(*arguments)
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
