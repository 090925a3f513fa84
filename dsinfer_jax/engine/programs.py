"""The compiled programs of an engine: one prefill for each row bucket, and one decode.

All are compiled ahead of time from abstract arguments. A compiled program refuses other shapes, so
nothing can compile between steps. The sampler is part of the program: only tokens, their
log-probabilities and failure marks come back.

A program knows no request: it takes a plan and the draws of its output rows.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax import _jax
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.packing import Packing
from dsinfer_jax.engine.sampler import Draws, Sample, idle_draws, sample
from dsinfer_jax.model import cache as model_cache
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket, Plan, Slice, decode_plan, prefill_plan

Array = jax.Array

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


@dataclass(frozen=True)
class _Program:
    compiled: Any
    packing: Packing
    bucket: Bucket
    report: ProgramReport


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

        def build(shape: _Shape) -> _Program:
            if progress is not None:
                progress(f"preparing the program {shape.name!r}")
            packing = Packing((shape.example, idle_draws(shape.bucket.outputs)))
            step = _step_function(packing, config, numerics)
            inputs = jax.ShapeDtypeStruct((packing.size,), jnp.int32)
            compiled, report = _compile(shape, step, abstract_params, abstract_cache, inputs)
            return _Program(compiled, packing, shape.bucket, report)

        start = time.perf_counter()
        shapes = [*_prefill_shapes(config, sizes), _decode_shape(config, sizes)]
        with _compile_threads() as threads:
            *prefill, self._decode = threads.map(build, shapes)
        self._prefill = dict(zip(sizes.prefill_rows, prefill))
        self.report = [program.report for program in (*prefill, self._decode)]
        self.seconds = time.perf_counter() - start

    def prefill(
        self, params: Params, cache: Cache, rows: int, slices: Sequence[Slice], draws: Draws
    ) -> tuple[Cache, Array]:
        """Dispatch a prefill step in the bucket of `rows`. The cache is given away.

        Args:
            draws: one for each wanted row, in the order of the slices and their outputs.

        Returns:
            The cache and the packed sample; `read_sample` waits for it.
        """
        program = self._prefill[rows]
        plan = prefill_plan(slices, program.bucket, self._config, self._sizes.truncation)
        return _run(program, params, cache, plan, draws)

    def decode(
        self,
        params: Params,
        cache: Cache,
        token_ids: np.ndarray,
        start: np.ndarray,
        block_tables: np.ndarray,
        draws: Draws,
    ) -> tuple[Cache, Array]:
        """Dispatch a decode step: see `decode_plan`. The cache is given away."""
        plan = decode_plan(token_ids, start, block_tables, self._config)
        return _run(self._decode, params, cache, plan, draws)

    def prefill_bucket(self, rows: int) -> Bucket:
        return self._prefill[rows].bucket


def read_sample(packed: Array) -> Sample:
    """The sample of a step on the host (numpy); waits until the step is done."""
    token_ids, logprobs, failed = np.asarray(packed)
    return Sample(token_ids, logprobs.view(np.float32), failed != 0)


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
    return _Shape(f"decode {sizes.slots} x {sizes.query_rows}", sizes.decode_bucket, idle)


@contextmanager
def _compile_threads() -> Iterator[Executor]:
    """Two threads: one program is traced while another compiles. Large graphs need large stacks."""
    before = threading.stack_size(_COMPILE_STACK_BYTES)
    try:
        with ThreadPoolExecutor(_COMPILE_THREADS) as threads:
            yield threads
    finally:
        threading.stack_size(before)


def _step_function(packing: Packing, config: ModelConfig, numerics: Numerics) -> Callable[..., Any]:
    def step(params: Params, cache: Cache, inputs: Array) -> tuple[Cache, Array]:
        plan, draws = packing.unpack(inputs)
        cache, result = forward(params, cache, plan, config, numerics)
        chosen = sample(result.logits, draws)
        logprobs = jax.lax.bitcast_convert_type(chosen.logprobs, jnp.int32)
        return cache, jnp.stack([chosen.token_ids, logprobs, chosen.failed.astype(jnp.int32)])

    return step


def _run(
    program: _Program, params: Params, cache: Cache, plan: Plan, draws: Draws
) -> tuple[Cache, Array]:
    inputs = jax.device_put(program.packing.pack((plan, draws)))
    return program.compiled(params, cache, inputs)


def _compile(shape: _Shape, step: Callable[..., Any], *arguments: Any) -> tuple[Any, ProgramReport]:
    events = _jax.compile_events()
    hits = events.hits_of_thread
    start = time.perf_counter()
    lowered = _jax.jit(step, donate=("cache",)).lower(*arguments)
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


def _abstract(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
