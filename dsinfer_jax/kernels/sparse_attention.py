"""Attention of each row to its own short list of keys, keys being values (model.md 4.4).

A row's list is its window (places in a pool of recent keys) followed by its selected compressed
keys (places in the blocks of a paged store). Only listed keys are gathered: the cost per row is
bounded by the list, not by the context. Rows are processed a few at a time, so that the gathered
keys stay small.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

ROWS_PER_STEP = 32


class PagedKeys(NamedTuple):
    """Compressed keys of one source and, for each row, which of them it attends to."""

    pages: Any  # tree of arrays [sources, blocks, keys per block, ...]
    source: int
    block: Array  # [rows, selected] int32
    offset: Array  # [rows, selected] int32
    visible: Array  # [rows, selected] bool


def attend(
    query: Array,
    keys: Array,
    visible: Array,
    sink: Array,
    scale: float,
    weights_dtype: jnp.dtype,
) -> Array:
    """Softmax attention with a sink logit in the denominator only.

    Args:
        query: [rows, heads, head_dim].
        keys: [rows, keys, head_dim], also the values.
        visible: [rows, keys] bool. A row without a visible key gives zeros.
        sink: [heads] float32, on the scaled-score axis.
        weights_dtype: type the numerator's weights are rounded to; the denominator is not rounded.

    Returns:
        float32 [rows, heads, head_dim].
    """
    precision = lax.Precision.HIGHEST
    scores = jnp.einsum(
        "rhd,rkd->rhk", query, keys, precision=precision, preferred_element_type=jnp.float32
    )
    scores = jnp.where(visible[:, None, :], scores * jnp.float32(scale), -jnp.inf)
    largest = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), sink[None, :, None])
    weights = jnp.exp(scores - largest)
    denominator = jnp.sum(weights, axis=-1) + jnp.exp(sink[None, :] - largest[..., 0])
    # an invisible key may hold anything, a NaN included: a weight of zero does not silence it
    values = jnp.where(visible[..., None], keys, 0)
    numerator = jnp.einsum(
        "rhk,rkd->rhd",
        weights.astype(weights_dtype),
        values.astype(weights_dtype),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    return numerator / denominator[..., None]


def sparse_attention(
    query: Array,
    pool: Array,
    window_index: Array,
    window_visible: Array,
    paged: PagedKeys | None,
    decode: Callable[[Any], Array],
    sink: Array,
    scale: float,
    weights_dtype: jnp.dtype,
) -> Array:
    """`attend` over gathered window keys and gathered, decoded compressed keys.

    Args:
        query: [rows, heads, head_dim].
        pool: [places, head_dim] recent keys.
        window_index: [rows, window] int32 into the pool.
        window_visible: [rows, window] bool.
        paged: compressed keys, or None in layers without them.
        decode: turns gathered pages into keys [..., head_dim] of the pool's type.
    """

    def some_rows(arguments: tuple[Array, ...]) -> Array:
        query, index, visible, *listed = arguments
        keys = pool[index]
        if paged is not None:
            block, offset, page_visible = listed
            # one gather: a source sliced before the loop over rows would be copied whole
            places = (paged.source, block, offset)
            selected = decode(jax.tree.map(lambda page: page[places], paged.pages))
            keys = jnp.concatenate([keys, selected], axis=1)
            visible = jnp.concatenate([visible, page_visible], axis=1)
        return attend(query, keys, visible, sink, scale, weights_dtype)

    lists = (paged.block, paged.offset, paged.visible) if paged is not None else ()
    return map_rows(some_rows, (query, window_index, window_visible, *lists), ROWS_PER_STEP)


def map_rows(function: Callable, arguments: Any, most_rows: int) -> Array:
    """Apply a row-wise function to at most `most_rows` (a power of two) rows at a time."""
    rows = jax.tree.leaves(arguments)[0].shape[0]
    rows_per_step = rows if rows <= most_rows else math.gcd(rows, most_rows)
    steps = rows // rows_per_step
    if steps == 1:
        return function(arguments)
    split = jax.tree.map(
        lambda leaf: leaf.reshape(steps, rows_per_step, *leaf.shape[1:]), arguments
    )
    result = lax.map(function, split)
    return result.reshape(rows, *result.shape[2:])
