"""Which compressed keys each row attends to: index queries, scores, top-k, candidate blocks
(model.md 6)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, LayerSpec, ModelConfig
from dsinfer_jax.kernels import index_scores
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.numerics import Numerics, product_bf16, product_fp8
from dsinfer_jax.model.observe import Observe
from dsinfer_jax.model.params import Params, at_layer
from dsinfer_jax.model.plan import Plan, RowIndex
from dsinfer_jax.model.rotary import inverse_frequencies, rotate

Array = jax.Array

# A chunk of a full scan: short contexts pay for a whole one, and its scores should stay in a
# processor's cache.
CHUNK_KEYS = 1 << 11
CHUNK_SCORES = 1 << 19  # rows x heads x keys: 2 MiB of float32
# Candidate keys are few and scattered: larger chunks, fewer merges.
CANDIDATE_CHUNK_SCORES = 1 << 21


class Selection(NamedTuple):
    """Made by an index source, used by the layers up to the next one."""

    keys: Array  # [rows, topk] int32 ascending, -1 padded
    candidates: Array | None  # [rows, blocks] int32 ascending, -1 padded: from the candidate source


def select(
    h: Array,
    low_rank_query: Array,
    params: Params,
    cache: Cache,
    plan: Plan,
    index: RowIndex,
    spec: LayerSpec,
    candidates: Array | None,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
) -> Selection:
    """Run one index source: choose the best `index_topk` visible keys of every row."""
    layer = spec.index
    queries = index_queries(h, low_rank_query, params, index, spec, config, numerics)
    observe("index_q", layer, queries.heads)
    observe("index_w", layer, queries.weights)
    keys, found = search(queries, cache, plan, index, spec, candidates, config, numerics)
    if spec.candidates == "source":
        assert found is not None
        candidates = observe("cand_blocks", layer, found)
    return Selection(observe("index_ids", layer, keys), candidates)


def search(
    queries: index_scores.Queries,
    cache: Cache,
    plan: Plan,
    index: RowIndex,
    spec: LayerSpec,
    candidates: Array | None,
    config: ModelConfig,
    numerics: Numerics,
) -> tuple[Array, Array | None]:
    """The best visible keys of each query, all or among candidates; a source's candidate blocks."""
    number = caches.index_key_sources(config, spec.ratio).index(spec.index_k_source)

    def read(*places: Array) -> index_scores.Keys:
        """Keys at (block,) or (block, offset). A source sliced before a loop would be copied."""
        gathered = jax.tree.map(lambda leaf: leaf[number, *places], cache.index[spec.ratio])
        return caches.decode_index(gathered, numerics)

    if spec.candidates == "restricted":
        assert candidates is not None
        keys = _search_candidates(queries, read, plan, index, spec, candidates, config, numerics)
        return keys, None
    kept_blocks = None
    if spec.candidates == "source":
        kept_blocks = (config.candidate_topk_blocks, config.candidate_block_size)
    tables = plan.block_tables[index.tile_sequence]  # [tiles, table width]
    keys_per_block = CACHE_BLOCK_TOKENS // spec.ratio
    limit = min(CHUNK_KEYS, CHUNK_SCORES // (index.positions.shape[0] * config.index_n_heads))
    blocks = _largest_divisor(tables.shape[1], max(limit // keys_per_block, 1))
    chunk = blocks * keys_per_block

    def fetch(number: Array) -> index_scores.Keys:
        some = lax.dynamic_slice_in_dim(tables, number * blocks, blocks, axis=1)
        return jax.tree.map(lambda part: part.reshape(tables.shape[0], chunk, -1), read(some))

    return index_scores.full_scan(
        queries, fetch, chunk, config.index_topk, numerics.dtype, candidates=kept_blocks
    )


def index_queries(
    h: Array,
    low_rank_query: Array,
    params: Params,
    index: RowIndex,
    spec: LayerSpec,
    config: ModelConfig,
    numerics: Numerics,
) -> index_scores.Queries:
    """Rotated, quantised queries per head and the weight of each head (model.md 6.2)."""
    assert params.indexers is not None
    source = config.index_source_layer_ids.index(spec.index)
    wq_b = at_layer(params.indexers.wq_b, source)
    heads = product_fp8(low_rank_query, wq_b, numerics)
    heads = heads.reshape(-1, config.index_n_heads, config.index_head_dim)
    positions = jnp.maximum(index.positions, 0)
    rotated = numerics.store(rotate(heads, positions, inverse_frequencies(config, spec.ratio)))
    weights = product_bf16(h, params.indexers.weights_proj[source], numerics)
    return index_scores.Queries(
        heads=jnp.concatenate(
            caches.decode_index(caches.encode_index(rotated, numerics), numerics), axis=-1
        ),
        weights=weights.astype(jnp.float32),
        visible_keys=visible_keys(index, spec.ratio),
    )


def visible_keys(index: RowIndex, ratio: int) -> Array:
    """klen of model.md 5: complete groups up to each row; none on padding."""
    return (index.positions + 1) // ratio


def _largest_divisor(number: int, limit: int) -> int:
    """Largest power of two that divides `number` and does not exceed `limit`."""
    return math.gcd(number, 1 << (limit.bit_length() - 1))


def _search_candidates(
    queries: index_scores.Queries,
    read: Callable[..., index_scores.Keys],
    plan: Plan,
    index: RowIndex,
    spec: LayerSpec,
    candidates: Array,
    config: ModelConfig,
    numerics: Numerics,
) -> Array:
    size = config.candidate_block_size

    def fetch(keys: Array) -> index_scores.Keys:
        return read(*key_places(keys, plan, index, spec.ratio))

    rows = index.positions.shape[0]
    width = max(config.index_n_heads, config.index_head_dim)
    budget = CANDIDATE_CHUNK_SCORES // (rows * width * size)
    return index_scores.candidate_scan(
        queries,
        fetch,
        candidates,
        size,
        _largest_divisor(config.candidate_topk_blocks, max(budget, 1)),
        topk=config.index_topk,
        dtype=numerics.dtype,
    )


def key_places(keys: Array, plan: Plan, index: RowIndex, ratio: int) -> tuple[Array, Array]:
    """(block, offset) of key numbers [rows, n] of each row's own sequence; -1 reads key 0."""
    keys_per_block = CACHE_BLOCK_TOKENS // ratio
    keys = jnp.maximum(keys, 0)
    block = plan.block_tables[index.sequence[:, None], keys // keys_per_block]
    return block, keys % keys_per_block
