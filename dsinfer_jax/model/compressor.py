"""Compressed keys and index keys: made from a source layer's input, stored in blocks (model.md 5,
6.1)."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsinfer_jax.config import LayerSpec, ModelConfig
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.cache import Cache, Stored
from dsinfer_jax.model.company import Company
from dsinfer_jax.model.numerics import Numerics, product_bf16, product_float, rms_norm
from dsinfer_jax.model.observe import Observe
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Plan, RowIndex, block_place
from dsinfer_jax.model.rotary import inverse_frequencies, rotate

Array = jax.Array


class Latents(NamedTuple):
    """Pre-rotation compressed vectors of a step: one per row, meaningful where the row completes a
    group."""

    values: Array  # [rows, head_dim]
    ratio: int
    rows: RowIndex  # the rows they belong to


def compress(
    h: Array,
    params: Params,
    cache: Cache,
    index: RowIndex,
    spec: LayerSpec,
    config: ModelConfig,
    numerics: Numerics,
    company: Company,
) -> tuple[Latents, Cache]:
    """Pool each group of `ratio` rows into one normed vector, and keep the pair state of ratio 2.

    Args:
        h: [own rows, hidden]; everything from the first product on is of all rows of the step.
        index: of the step's rows.
    """
    assert params.compressors is not None
    source = config.kv_source_layer_ids.index(spec.index)
    weight, norm = params.compressors.wkv[source], params.compressors.norm[source]
    if spec.ratio == 1:
        pooled = company.step_rows(product_bf16(h, weight, numerics), False)
    else:
        assert params.compressors.wgate is not None and cache.pair_state is not None
        number = config.kv_sources(2).index(spec.index)
        gate = product_float(h, params.compressors.wgate[number], numerics)
        value = product_float(h, weight, numerics)
        state = company.step_rows(jnp.stack([gate, value], axis=1), False)  # [rows, 2, head_dim]
        previous = _previous_state(state, cache.pair_state[number], index)
        pooled = numerics.store(pool_pair(previous, state))
        slots, ring = cache.pair_state.shape[1:3]
        slot, place = index.ring_place(ring, slots)
        kept = cache.pair_state.at[number, slot, place].set(state, mode="drop")
        cache = replace(cache, pair_state=kept)
    values = rms_norm(pooled, norm, config.rms_norm_eps, numerics)
    return Latents(values, spec.ratio, index), cache


def _previous_state(state: Array, ring: Array, index: RowIndex) -> Array:
    """(gate, value) of the position before each row: from the step, or from the slot's ring."""
    in_step = (index.preceding > 0)[:, None, None]
    place = jnp.maximum(index.positions - 1, 0) % ring.shape[1]
    return jnp.where(in_step, jnp.roll(state, 1, axis=0), ring[index.slot, place])


def pool_pair(first: Array, second: Array) -> Array:
    """Softmax-weighted sum, per channel, of two (gate, value) rows [rows, 2, head_dim]."""
    gates = jnp.stack([first[:, 0], second[:, 0]])
    weights = jax.nn.softmax(gates, axis=0)
    return weights[0] * first[:, 1] + weights[1] * second[:, 1]


def store_main_keys(
    latents: Latents,
    cache: Cache,
    plan: Plan,
    spec: LayerSpec,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
) -> Cache:
    """Rotate the latents at their group's first position and write them to the sequences'
    blocks."""
    keys = _rotated(latents, spec, config, numerics)
    encoded = caches.encode_main(keys, config, numerics)
    observe("main_kv", spec.index, caches.decode(encoded, numerics))
    number = config.kv_sources(spec.ratio).index(spec.index)
    pages = write_pages(cache.main[spec.ratio], number, encoded, plan, latents)
    return replace(cache, main={**cache.main, spec.ratio: pages})


def store_index_keys(
    latents: Latents,
    params: Params,
    cache: Cache,
    plan: Plan,
    spec: LayerSpec,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
) -> Cache:
    """Index keys come from the un-rotated, un-quantised latents (model.md 6.1)."""
    assert params.index_keys is not None
    source = config.index_k_source_layer_ids.index(spec.index)
    projected = product_bf16(latents.values, params.index_keys.wk[source], numerics)
    normed = rms_norm(projected, params.index_keys.k_norm[source], config.rms_norm_eps, numerics)
    keys = _rotated(latents._replace(values=normed), spec, config, numerics)
    encoded = caches.encode_index(keys, numerics)
    observe("index_k", spec.index, jnp.concatenate(caches.decode_index(encoded, numerics), -1))
    number = caches.index_key_sources(config, spec.ratio).index(spec.index)
    pages = write_pages(cache.index[spec.ratio], number, encoded, plan, latents)
    return replace(cache, index={**cache.index, spec.ratio: pages})


def _rotated(latents: Latents, spec: LayerSpec, config: ModelConfig, numerics: Numerics) -> Array:
    first_position = jnp.maximum(latents.rows.positions + 1 - latents.ratio, 0)
    frequencies = inverse_frequencies(config, spec.ratio)
    return numerics.store(rotate(latents.values, first_position, frequencies))


def write_pages(
    pages: Stored, source: int, encoded: Stored, plan: Plan, latents: Latents
) -> Stored:
    """Store encoded keys [rows, ...] at their blocks of `source`; rows without a place write
    nothing."""
    block, offset = block_place(plan, latents.rows, latents.ratio, pages.codes.shape[1])
    return jax.tree.map(
        lambda page, rows: page.at[source, block, offset].set(rows, mode="drop"), pages, encoded
    )
