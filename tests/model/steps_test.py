"""A step reuses its program, and writes the cache in place."""

import jax
import numpy as np
import pytest
from model_support import FEW_LAYERS, SLOTS, Machine, blocks_of, bucket, machine, piece

from dsinfer_jax import _jax
from dsinfer_jax.config import tiny
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model import params
from dsinfer_jax.model.numerics import EXACT
from dsinfer_jax.model.plan import decode_plan, prefill_plan


@pytest.fixture(scope="module")
def few() -> Machine:
    return machine("few_layers", "exact")


def test_nothing_recompiles_between_steps(few):
    """Other lengths, slots, counts and positions are other data for the same two programs."""
    tokens = few.tokens(400)
    random = np.random.default_rng(0)

    def steps(cache, lengths, starts, counts):
        slices = [piece(tokens, 0, rows, slot=slot) for slot, rows in enumerate(lengths)]
        cache, _ = few.prefill(cache, slices, bucket(64))
        token_ids = random.integers(3, 500, (SLOTS, 2))
        cache, _ = few.decode(cache, token_ids, np.array(starts), np.array(counts, np.int32))
        return cache

    cache = steps(few.fresh(), [1], [1] + [-1] * 7, [1] * 8)
    events = _jax.compile_events()
    traced, compiled = few.programs, events.programs
    for lengths in ([64], [8] * 8, [3, 30, 17]):
        starts = random.integers(-1, 300, SLOTS)
        cache = steps(cache, lengths, starts, random.integers(1, 3, SLOTS))
    assert few.programs == traced
    assert events.programs == compiled


def test_the_cache_is_written_in_place(few):
    tables = np.stack([blocks_of(slot) for slot in range(SLOTS)])
    start = np.full(SLOTS, 3, np.int32)
    plan = decode_plan(np.ones((SLOTS, 2), np.int32), start, tables, few.config)
    cache = caches.init(few.config, few.sizes, few.numerics)
    compiled = few.step.lower(few.params, cache, plan).compile()
    kept = compiled.memory_analysis().alias_size_in_bytes
    assert kept >= caches.tree_bytes(cache)
    after, _ = compiled(few.params, cache, plan)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(cache))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_temporaries_do_not_grow_with_the_pool():
    """No loop over rows or keys copies the blocks of a source, in a model with two of a ratio."""
    two_sources = FEW_LAYERS | {
        "kv_source_layer_ids": [1, 2, 3],
        "index_source_layer_ids": [1, 2, 3, 4],
    }
    sizes = caches.CacheSizes(slots=SLOTS, blocks=10_000)
    model = Machine(tiny(**two_sources), EXACT, sizes)
    plan = prefill_plan([piece(model.tokens(8), 0, 8)], bucket(64), model.config)
    cache = caches.abstract(model.config, sizes, EXACT)
    compiled = model.step.lower(params.abstract(model.config), cache, plan).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= caches.tree_bytes(cache)
    one_source = caches.tree_bytes(cache.index[2]) / 2
    assert memory.temp_size_in_bytes < one_source / 4
