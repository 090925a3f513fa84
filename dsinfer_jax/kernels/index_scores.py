"""Scores of index queries against index keys, with a running top-k (model.md 6.3 to 6.5).

Two scans share their parts. The *full* scan runs over a sequence's blocks in chunks, as many as the
longest sequence of the step needs: its cost follows the context. The *candidate* scan runs over the
keys of each row's candidate blocks: its cost is bounded by the candidate set. Ties go to the lowest
key index.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

Array = jax.Array

_COUNT_BLOCK = 64


class Queries(NamedTuple):
    """Index queries of a step's rows.

    Attributes:
        heads: [rows, index_heads, index_dim] in the compute type.
        weights: [rows, index_heads] float32, of either sign.
        visible_keys: [rows] int32: how many keys each row may see.
    """

    heads: Array
    weights: Array
    visible_keys: Array


Keys = tuple[Array, ...]  # [groups, n, part] parts of key vectors, side by side in the last axis


class Running(NamedTuple):
    """The best keys so far, in ascending order of keys."""

    values: Array  # [rows, k] float32, -inf where empty
    keys: Array  # [rows, k] int32, -1 where empty, at the end


def empty(rows: int, k: int) -> Running:
    return Running(jnp.full((rows, k), -jnp.inf), jnp.full((rows, k), -1, jnp.int32))


def merge(best: Running, values: Array, keys: Array, dtype: DTypeLike = jnp.float32) -> Running:
    """Take the k best of the running list and new values [rows, n] whose keys all come later.

    Among equal values the lowest keys win. Nothing is sorted: the k-th largest value is found bit
    by bit, and what reaches it is moved together, so the list stays in the order of its keys.
    All values are exact in `dtype`, float32 or bf16, which says how many bits there are to find.
    """
    rows, k = best.values.shape
    values = jnp.concatenate([best.values, values], axis=-1)
    keys = jnp.broadcast_to(keys, (rows, values.shape[1] - k))
    keys = jnp.concatenate([best.keys, keys], axis=-1)
    bits = 8 * jnp.dtype(dtype).itemsize
    ordered = _as_ordered_integers(values) >> (32 - bits)
    threshold = _kth_largest(ordered, k, bits)[:, None]
    above, equal = ordered > threshold, ordered == threshold
    wanted = k - jnp.sum(above, axis=-1, keepdims=True)
    chosen = above | (equal & (running_count(equal) <= wanted))
    chosen &= values != -jnp.inf
    return _moved_together(values, keys, chosen, k)


def append_or_merge(
    best: Running, values: Array, keys: Array, first: Array, dtype: DTypeLike
) -> Running:
    """`merge` of the `first`-th and following values of each row, appended while they fit."""
    count, k = values.shape[1], best.values.shape[1]
    if count > k:
        return merge(best, values, keys, dtype)

    def append() -> Running:
        listed = jnp.where(values == -jnp.inf, -1, keys)
        return Running(
            lax.dynamic_update_slice_in_dim(best.values, values, first, axis=1),
            lax.dynamic_update_slice_in_dim(best.keys, listed, first, axis=1),
        )

    return lax.cond(first + count <= k, append, lambda: merge(best, values, keys, dtype))


def _moved_together(values: Array, keys: Array, chosen: Array, k: int) -> Running:
    """The chosen entries of each row, at most k, in their order."""
    rows, count = chosen.shape
    place = jnp.where(chosen, running_count(chosen) - 1, k)
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    entry = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), chosen.shape)
    # one scatter of entry numbers, then gathers: a scatter is slow on a CPU
    source = jnp.full((rows, k), -1, jnp.int32).at[row, place].set(entry, mode="drop")
    filled = source >= 0
    source = jnp.maximum(source, 0)
    return Running(
        jnp.where(filled, jnp.take_along_axis(values, source, axis=1), -jnp.inf),
        jnp.where(filled, jnp.take_along_axis(keys, source, axis=1), -1),
    )


def _as_ordered_integers(values: Array) -> Array:
    """int32 in the order of the float32 values; NaN with a positive sign is the largest."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    return bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))


def _kth_largest(ordered: Array, k: int, bits: int) -> Array:
    """The k-th largest of each row [rows, n], n > k, of signed numbers of so many bits.

    It is the largest number that k entries reach, built from its highest bit down.
    """

    def decide_bit(number: Array, found: Array) -> Array:
        higher = found + (jnp.int32(1) << (bits - 1 - number))
        reached = jnp.sum(ordered >= higher[:, None], axis=-1) >= k
        return jnp.where(reached, higher, found)

    lowest = jnp.full(ordered.shape[0], -(1 << (bits - 1)), jnp.int32)
    return lax.fori_loop(0, bits, decide_bit, lowest)


def running_count(mask: Array) -> Array:
    """How many entries of each row are set up to and including each: int32 [rows, n].

    Two small products with triangles of ones; the counts are exact in float32.
    """
    rows, count = mask.shape
    blocks = jnp.pad(mask, ((0, 0), (0, -count % _COUNT_BLOCK))).astype(jnp.float32)
    blocks = blocks.reshape(rows, -1, _COUNT_BLOCK)
    triangle = jnp.triu(jnp.ones((_COUNT_BLOCK, _COUNT_BLOCK), jnp.float32))
    within = jnp.einsum("rbi,ij->rbj", blocks, triangle, precision=lax.Precision.HIGHEST)
    totals = within[..., -1]
    earlier = jnp.triu(jnp.ones((totals.shape[1],) * 2, jnp.float32), k=1)
    before = jnp.einsum("rb,bc->rc", totals, earlier, precision=lax.Precision.HIGHEST)
    return (within + before[..., None]).reshape(rows, -1)[:, :count].astype(jnp.int32)


def scores(queries: Queries, keys: Keys, dtype: DTypeLike) -> Array:
    """sum_h weight_h max(query_h . key, 0), rounded to `dtype`, as float32.

    Args:
        keys: of `groups` sequences; the rows are split evenly over the groups.

    Returns:
        [rows, n]. A score of -0 becomes +0, so that equal scores tie.
    """
    rows, heads, width = queries.heads.shape
    groups = keys[0].shape[0]
    by_group = queries.heads.reshape(groups, rows // groups * heads, width)
    products, first = jnp.float32(0.0), 0
    for part in keys:
        products = products + jnp.einsum(
            "gxd,gnd->gxn",
            by_group[..., first : first + part.shape[-1]],
            part,
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        first += part.shape[-1]
    products = products.reshape(rows, heads, -1)
    weighted = jnp.maximum(products, 0.0) * queries.weights[..., None]
    total = weighted[:, 0]
    for head in range(1, heads):  # an ordered sum: the same bits for any number of rows
        total = total + weighted[:, head]
    total = total.astype(dtype).astype(jnp.float32)
    return jnp.where(total == 0, 0.0, total)


def full_scan(
    queries: Queries,
    fetch: Callable[[Array], Keys],
    chunk: int,
    topk: int,
    dtype: DTypeLike,
    candidates: tuple[int, int] | None = None,
) -> tuple[Array, Array | None]:
    """The best keys of each row among all visible ones, and its candidate blocks.

    Args:
        fetch: chunk number -> keys [tiles, chunk, ...] of each tile's sequence.
        chunk: keys per chunk, a multiple of the keys per candidate block.
        topk: keys to keep.
        candidates: (blocks to keep, keys per block), or None.

    Returns:
        keys [rows, topk] ascending, -1 padded; candidate blocks [rows, blocks] likewise, or None.
    """
    rows = queries.heads.shape[0]
    blocks, size = candidates or (0, 1)

    def step(number: Array, state: tuple[Running, Running]) -> tuple[Running, Running]:
        keys = number * chunk + jnp.arange(chunk, dtype=jnp.int32)
        visible = keys < queries.visible_keys[:, None]
        score = jnp.where(visible, scores(queries, fetch(number), dtype), -jnp.inf)
        best, best_blocks = state
        if candidates is not None:
            found = block_maxima(score, keys[0], queries.visible_keys, size)
            best_blocks = append_or_merge(best_blocks, *found, found[1][0], dtype)
        return merge(best, score, keys, dtype), best_blocks

    chunks = -(-jnp.max(queries.visible_keys) // chunk)
    state = (empty(rows, topk), empty(rows, blocks))
    best, best_blocks = lax.fori_loop(0, chunks, step, state)
    return best.keys, None if candidates is None else best_blocks.keys


def block_maxima(
    score: Array, first_key: Array, visible_keys: Array, size: int
) -> tuple[Array, Array]:
    """(maxima [rows, n], block numbers [n]) of scores of consecutive keys.

    The last block of a row is always kept: it may be the newest, partial one (model.md 6.5).
    """
    maxima = jnp.max(score.reshape(score.shape[0], -1, size), axis=-1)
    maxima = jnp.minimum(maxima, jnp.finfo(jnp.bfloat16).max.astype(jnp.float32))
    numbers = first_key // size + jnp.arange(maxima.shape[1], dtype=jnp.int32)
    visible = visible_keys[:, None]
    newest = (numbers == (visible - 1) // size) & (visible > 0)
    return jnp.where(newest, jnp.inf, maxima), numbers


def candidate_scan(
    queries: Queries,
    fetch: Callable[[Array], Keys],
    candidate_blocks: Array,
    size: int,
    blocks_per_chunk: int,
    topk: int,
    dtype: DTypeLike,
) -> Array:
    """The best keys of each row within its candidate blocks.

    Args:
        fetch: key numbers [rows, n] -> keys of n per row.
        candidate_blocks: [rows, blocks] ascending, -1 padded.
        size: keys per block.

    Returns:
        keys [rows, topk] ascending, -1 padded.
    """
    rows, blocks = candidate_blocks.shape
    visible = queries.visible_keys[:, None]
    offsets = jnp.arange(size, dtype=jnp.int32)

    def step(number: Array, best: Running) -> Running:
        some = lax.dynamic_slice_in_dim(
            candidate_blocks, number * blocks_per_chunk, blocks_per_chunk, axis=1
        )
        keys = (some[..., None] * size + offsets).reshape(rows, -1)
        allowed = (keys >= 0) & (keys < visible)
        score = scores(queries, fetch(jnp.where(allowed, keys, 0)), dtype)
        return merge(best, jnp.where(allowed, score, -jnp.inf), keys, dtype)

    used = jnp.max(jnp.sum(candidate_blocks >= 0, axis=1))
    chunks = jnp.minimum(-(-used // blocks_per_chunk), blocks // blocks_per_chunk)
    return lax.fori_loop(0, chunks, step, empty(rows, topk)).keys
