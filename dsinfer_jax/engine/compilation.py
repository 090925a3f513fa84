"""Compiling an engine's programs ahead of time, from shapes alone.

What a program is compiled for need not exist: a target's devices and weights may be abstract, so
programs for a pod can be built on a laptop (`tests/deviceless`).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from dsinfer_jax import _jax
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.devices import Devices
from dsinfer_jax.engine.drafter import Drafter
from dsinfer_jax.engine.draws import idle_draws
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.packing import Packing
from dsinfer_jax.engine.slot_state import mask_words
from dsinfer_jax.engine.steps import (
    EngineState,
    PrefillInputs,
    Step,
    decode_step,
    idle_inputs,
    outcome_packing,
    prefill_step,
)
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket, prefill_plan

Array = jax.Array
Leaf = jax.Array | np.ndarray


@dataclass(frozen=True)
class CompileTarget:
    """What all programs of an engine are compiled for.

    Attributes:
        devices: real, or abstract ones, whose arrays are shapes.
        params, state: weights, and what the steps keep for each slot, or their abstract trees: only
            shapes and places matter.
    """

    config: ModelConfig
    numerics: Numerics
    sizes: EngineConfig
    drafter: Drafter
    devices: Devices
    params: Params
    state: EngineState


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
class ProgramShape:
    """A program to build.

    Attributes:
        function: of steps.py.
        example: its inputs, for structure and shapes.
        masks: rows of allowed tokens that each rank gives it.
    """

    name: str
    bucket: Bucket
    function: Callable[..., Step]
    example: Any
    masks: int


@dataclass(frozen=True)
class Program:
    """A compiled step, and how its inputs and outcome are packed."""

    compiled: Any
    inputs: Packing
    outcome: Packing
    bucket: Bucket
    report: ProgramReport
    open_masks: Array  # every token allowed in every row; stays on the device


def program_shapes(config: ModelConfig, sizes: EngineConfig) -> list[ProgramShape]:
    """What an engine compiles: a prefill for each row count, a decode for each form."""
    return [*_prefill_shapes(config, sizes), *_decode_shapes(sizes)]


def compile_program(shape: ProgramShape, target: CompileTarget) -> Program:
    """Trace and compile a program, or read it from the persistent cache."""
    config, sizes, devices = target.config, target.sizes, target.devices
    inputs = Packing(shape.example)
    experts = config.num_hidden_layers, config.n_routed_experts
    outcome = outcome_packing(shape.bucket.outputs, sizes.slots, target.drafter.places, experts)
    step = shape.function(inputs, target.drafter, config, target.numerics)
    open_masks = devices.by_rank(
        np.full((shape.masks * sizes.ranks, mask_words(config.vocab_size)), -1, np.int32)
    )
    packed = devices.stacked([np.zeros(inputs.size, np.int32)] * sizes.ranks)
    arguments = devices.abstract_cache(), target.state, packed, open_masks
    compiled, report = _compile(
        shape, devices.program(step, shape.bucket.tile_rows),
        jax.tree.map(as_it_lies, target.params),
        *jax.tree.map(abstract, (*arguments, *devices.extra)),
    )  # fmt: skip
    return Program(compiled, inputs, outcome, shape.bucket, report, open_masks)


def _prefill_shapes(config: ModelConfig, sizes: EngineConfig) -> Iterator[ProgramShape]:
    for rows in sizes.prefill_rows:
        bucket = sizes.prefill_bucket(rows)
        plan = prefill_plan([], bucket, config, sizes.truncation)
        example = PrefillInputs(
            plan, idle_draws(bucket.outputs), np.zeros(bucket.outputs, np.int32)
        )
        yield ProgramShape(f"prefill {rows}", bucket, prefill_step, example, bucket.outputs)


def _decode_shapes(sizes: EngineConfig) -> Iterator[ProgramShape]:
    example = idle_inputs(sizes.slots, sizes.table_width)
    for form in sizes.decode_forms:
        name = f"decode {sizes.slots} x {form.rows // sizes.slots}"
        if form.ragged:
            name = f"decode ragged {form.rows}"
        function = partial(decode_step, form)
        masks = sizes.slots * sizes.query_rows
        yield ProgramShape(name, sizes.decode_bucket(form), function, example, masks)


def _compile(shape: ProgramShape, step: Step, *arguments: Any) -> tuple[Any, ProgramReport]:
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


def as_it_lies(weight: Any) -> jax.ShapeDtypeStruct:
    """Shape, type, place and layout in memory of a weight, which may be abstract itself."""
    if isinstance(weight, jax.ShapeDtypeStruct):
        return weight
    return jax.ShapeDtypeStruct(weight.shape, weight.dtype, sharding=weight.format)


def abstract(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """Shape, type and place of a leaf, which may be abstract itself."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
