"""Small models on the CPU with their compiled programs, shared by all tests of a session.

A `Machine` is a configuration, a rounding policy and a cache size. Every test takes a fresh cache
from it and runs steps through one jitted function, so a program of one shape compiles once per
session.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax import _jax, config
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model import init
from dsinfer_jax.model.cache import Cache, CacheSizes
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import POLICIES, Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import (
    Bucket,
    Plan,
    Slice,
    Truncation,
    decode_plan,
    prefill_plan,
)

SLOTS = 8
TABLE_WIDTH = 4  # blocks per sequence: 512 tokens
TILE_ROWS = 8
SIZES = CacheSizes(slots=SLOTS, blocks=SLOTS * TABLE_WIDTH + 1, rollback=6)
OFF = Truncation()

# one layer of every kind: n-gram memory at a C0 and a C2 layer, both ratios, candidate source and
# restricted source, a sharing layer in each half
FEW_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 6,
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4],
    "candidate_source_layer_id": 3,
    "engram_layer_ids": [0, 1],
}
CONFIGS = {
    "tiny": config.tiny,
    "tiny_formats": config.tiny_formats,
    "few_layers": lambda: config.tiny(**FEW_LAYERS),
    "few_layers_formats": lambda: config.tiny_formats(**FEW_LAYERS),
}


@dataclass
class Machine:
    """One small model with random weights of a fixed seed."""

    config: ModelConfig
    numerics: Numerics
    sizes: CacheSizes = SIZES
    programs: int = field(default=0, init=False)  # traced so far, one per shape of plan

    @cached_property
    def params(self) -> Params:
        return init.init(self.config, seed=7)

    @cached_property
    def step(self) -> Any:
        def run(params: Params, cache: Cache, plan: Plan) -> tuple[Cache, jax.Array]:
            self.programs += 1
            cache, result = forward(params, cache, plan, self.config, self.numerics)
            return cache, result.logits

        return _jax.jit(run, donate=("cache",))

    def tokens(self, count: int, seed: int = 0) -> np.ndarray:
        """Ids of a sequence; none of them special."""
        random = np.random.default_rng(seed)
        return random.integers(3, self.config.vocab_size, count, np.int32)

    def fresh(self) -> Cache:
        """A cache full of garbage: nothing in it may be read before it is written."""
        return jax.tree.map(_garbage, caches.abstract(self.config, self.sizes, self.numerics))

    def prefill(
        self,
        cache: Cache,
        slices: Sequence[Slice],
        bucket: Bucket,
        truncation: Truncation = OFF,
    ) -> tuple[Cache, list[np.ndarray]]:
        """Logits [wanted rows, vocab] of every slice."""
        plan = prefill_plan(slices, bucket, self.config, truncation)
        cache, logits = self.step(self.params, cache, plan)
        ends = np.cumsum([len(part.outputs) for part in slices])
        return cache, np.split(np.asarray(logits)[: ends[-1]], ends[:-1])

    def decode(
        self,
        cache: Cache,
        token_ids: np.ndarray,
        start: np.ndarray,
        counts: np.ndarray | None = None,
    ) -> tuple[Cache, np.ndarray]:
        """Logits [slots, q, vocab]. token_ids [slots, q]; a slot with start -1 idles."""
        tables = np.stack([blocks_of(slot) for slot in range(SLOTS)])
        plan = decode_plan(token_ids, start, tables, self.config, counts)
        cache, logits = self.step(self.params, cache, plan)
        return cache, np.asarray(logits).reshape(*token_ids.shape, -1)

    def whole(self, tokens: np.ndarray, bucket: Bucket, slot: int = 0) -> np.ndarray:
        """Logits of every row of a sequence, in one slice, alone."""
        _, (logits,) = self.prefill(
            self.fresh(), [piece(tokens, 0, len(tokens), slot=slot)], bucket
        )
        return logits


def blocks_of(slot: int) -> np.ndarray:
    """Block table of a slot: scattered over the pool. Block 0 is nobody's."""
    return 1 + slot + SLOTS * np.arange(TABLE_WIDTH, dtype=np.int32)


def bucket(rows: int, sequences: int = SLOTS, **options: Any) -> Bucket:
    return Bucket(
        **{
            "rows": rows,
            "sequences": sequences,
            "table_width": TABLE_WIDTH,
            "outputs": rows,
            "tile_rows": TILE_ROWS,
            **options,
        }
    )


def piece(tokens: np.ndarray, start: int, stop: int, slot: int = 0, **options: Any) -> Slice:
    """Rows start..stop of a sequence; all their logits are wanted."""
    return Slice(
        **{
            "slot": slot,
            "token_ids": tokens[start:stop],
            "start": start,
            "known_length": len(tokens),
            "blocks": blocks_of(slot),
            "previous_ids": tokens[:start],
            "outputs": range(stop - start),
            **options,
        }
    )


def _garbage(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """NaN where the type has one; else scales that overflow, and ids outside the vocabulary."""
    if leaf.dtype == jnp.int32:
        return jnp.full(leaf.shape, 1 << 20, jnp.int32)
    if leaf.dtype == jnp.uint8:
        return jnp.full(leaf.shape, 254, jnp.uint8)
    return jnp.full(leaf.shape, jnp.nan, leaf.dtype)


@cache
def machine(config_name: str, policy: str) -> Machine:
    """The session's machine of a named configuration and policy."""
    return Machine(CONFIGS[config_name](), POLICIES[policy])


def assert_same_bits(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Rows equal bit for bit, and all of them finite."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    assert np.isfinite(expected).all(), f"{what}: the expected rows are not finite"
    rows = actual.shape[0]
    same = (actual.view(np.uint32) == expected.view(np.uint32)).reshape(rows, -1).all(axis=1)
    if not same.all():
        worst = np.abs(actual - expected).max()
        raise AssertionError(
            f"{what}: rows {np.flatnonzero(~same)[:20]} of {rows} differ, by up to {worst}"
        )
