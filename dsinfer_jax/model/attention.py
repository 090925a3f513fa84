"""Attention of one layer: shared key-value vectors, window and selected keys, sink, inverse
rotation (model.md 4)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax.config import LayerSpec, ModelConfig
from dsinfer_jax.kernels.sparse_attention import PagedKeys, sparse_attention
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.company import Company
from dsinfer_jax.model.indexer import Selection, key_places
from dsinfer_jax.model.numerics import Numerics, dequantise, product_fp8, rms_norm, rows_product
from dsinfer_jax.model.observe import Observe
from dsinfer_jax.model.params import AttentionParams
from dsinfer_jax.model.plan import Plan, RowIndex
from dsinfer_jax.model.rotary import inverse_frequencies, rotate

Array = jax.Array


def low_rank_query(
    h: Array, params: AttentionParams, config: ModelConfig, numerics: Numerics
) -> Array:
    """The normed low-rank query [rows, q_rank], shared by attention and indexer."""
    return rms_norm(
        product_fp8(h, params.wq_a, numerics), params.q_norm, config.rms_norm_eps, numerics
    )


def attention(
    h: Array,
    query: Array,
    layer: Array | int,
    params: AttentionParams,
    cache: Cache,
    plan: Plan,
    index: RowIndex,
    step_index: RowIndex,
    spec: LayerSpec,
    selection: Selection | None,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
    company: Company,
) -> tuple[Array, Cache]:
    """One attention sub-layer over its own window keys and the compressed keys of its source.

    Args:
        h: [rows, hidden], the normed input.
        query: [rows, q_rank], from `low_rank_query`.
        layer: number of the layer, static or traced; `spec` holds what does not vary in a scanned
            run.
        index, step_index: of this device's rows, and of all rows of the step, whose window keys
            everybody needs.
        selection: keys to attend to in layers with a ratio above 0.

    Returns:
        [rows, hidden], and the cache with this step's window keys.
    """
    frequencies = inverse_frequencies(config, spec.ratio)
    positions = jnp.maximum(index.positions, 0)
    heads = product_fp8(query, params.wq_b, numerics)
    heads = heads.reshape(-1, config.num_attention_heads, config.head_dim)
    heads = numerics.store(rotate(heads, positions, frequencies))
    observe("q", spec.index, heads)

    window_keys = window_keys_of(h, positions, params, frequencies, config, numerics)
    encoded = caches.encode_window(window_keys, numerics)
    observe("swa_kv", spec.index, caches.decode(encoded, numerics))
    encoded = company.step_rows(encoded, spec.consumer)
    rings = jax.tree.map(lambda leaf: leaf[layer, plan.slots], cache.window)
    pool = jnp.concatenate(
        [
            caches.decode(rings, numerics).reshape(-1, config.head_dim),
            caches.decode(encoded, numerics),
        ]
    )
    cache = _write_window(cache, layer, encoded, step_index)

    paged = None
    if spec.ratio:
        assert selection is not None
        number = config.kv_sources(spec.ratio).index(spec.kv_source)
        block, offset = key_places(selection.keys, plan, index, spec.ratio)
        pages = cache.main[spec.ratio]
        paged = PagedKeys(pages, number, block, offset, selection.keys >= 0)
    context = sparse_attention(
        heads,
        pool,
        index.window_index,
        index.window_visible,
        paged,
        lambda stored: caches.decode(stored, numerics),
        params.attn_sink,
        config.head_dim**-0.5,
        numerics.attention_weights,
    )
    output = output_projection(
        context, positions, params, frequencies, spec.index, config, numerics, observe
    )
    return output, cache


def window_keys_of(
    h: Array,
    positions: Array,
    params: AttentionParams,
    frequencies: np.ndarray,
    config: ModelConfig,
    numerics: Numerics,
) -> Array:
    """Normed, rotated key-value vectors [rows, head_dim] of these rows, before their cache
    format."""
    keys = product_fp8(h, params.wkv, numerics)
    normed = rms_norm(keys, params.kv_norm, config.rms_norm_eps, numerics)
    return numerics.store(rotate(normed, positions, frequencies))


def _write_window(
    cache: Cache, layer: Array | int, encoded: caches.Stored, index: RowIndex
) -> Cache:
    slots, ring = cache.window.codes.shape[1:3]
    slot, place = index.ring_place(ring, slots)
    window = jax.tree.map(
        lambda leaf, rows: leaf.at[layer, slot, place].set(rows, mode="drop"),
        cache.window,
        encoded,
    )
    return replace(cache, window=window)


def output_projection(
    context: Array,
    positions: Array,
    params: AttentionParams,
    frequencies: np.ndarray,
    layer: int,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
) -> Array:
    """Turn the context [rows, heads, head_dim] back at the query's position and project it in
    groups."""
    if not numerics.fused_attention:
        context = numerics.store(context)
    observe("attn_ctx", layer, context)
    context = rotate(context, positions, frequencies, inverse=True)
    if not numerics.fused_attention:
        context = numerics.store(context)
    context = numerics.quantised(context) if numerics.quantise_context else numerics.store(context)
    groups = config.o_groups
    grouped = context.reshape(context.shape[0], groups, -1)
    weight = dequantise(params.wo_a, numerics.dtype).reshape(groups, config.o_lora_rank, -1)
    low_rank = jax.vmap(rows_product, in_axes=(1, 0), out_axes=1)(grouped, weight)
    flat = numerics.store(low_rank).reshape(context.shape[0], -1)
    return product_fp8(flat, params.wo_b, numerics)
