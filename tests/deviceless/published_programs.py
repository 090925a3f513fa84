"""Abstract arguments of prefill and decode at the published sizes: shapes without memory."""

from typing import Any

import jax
import numpy as np

from dsinfer_jax import _jax
from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model import params
from dsinfer_jax.model.cache import Cache, CacheSizes
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import RUNTIME
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket, Plan, Slice, Truncation, decode_plan, prefill_plan

CONTEXT = 8192  # tokens per sequence
SLOTS = 8
TABLE_WIDTH = CONTEXT // CACHE_BLOCK_TOKENS
SIZES = CacheSizes(slots=SLOTS, blocks=SLOTS * TABLE_WIDTH)
KINDS = ("prefill", "decode")


def plan_of(kind: str, config: ModelConfig) -> Plan:
    """512 rows of one sequence, compact; or one row of each slot."""
    if kind == "decode":
        tables = np.zeros((SLOTS, TABLE_WIDTH), np.int32)
        token_ids, start = np.zeros((SLOTS, 1), np.int32), np.zeros(SLOTS, np.int32)
        return decode_plan(token_ids, start, tables, config)
    bucket = Bucket(512, 1, TABLE_WIDTH, outputs=1, tile_rows=128, consumer_rows=256)
    part = Slice(0, [5] * 512, 0, 512, range(TABLE_WIDTH), outputs=[511])
    return prefill_plan([part], bucket, config, Truncation("compact", 140))


def step_of(config: ModelConfig) -> Any:
    def step(params: Params, cache: Cache, plan: Plan) -> tuple[Cache, jax.Array]:
        cache, result = forward(params, cache, plan, config, RUNTIME)
        return cache, result.logits

    return _jax.jit(step, donate=("cache",))


def arguments(kind: str, config: ModelConfig) -> tuple[Params, Cache, Plan]:
    plan = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), plan_of(kind, config)
    )
    return params.abstract(config), caches.abstract(config, SIZES, RUNTIME), plan
