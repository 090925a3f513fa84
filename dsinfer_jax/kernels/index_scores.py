"""Scores of index queries against index keys, with a running top-k (model.md 6.3 to 6.5).

Two scans share their parts. The *full* scan runs over a sequence's blocks in chunks, as many as the
longest sequence of the step needs: its cost follows the context. The *candidate* scan runs over the
keys of each row's candidate blocks: its cost is bounded by the candidate set. Ties go to the lowest
key index.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


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


class Reader(NamedTuple):
    """How a full scan reads keys.

    Attributes:
        fetch: chunk number -> keys [tiles, chunk, ...] of each tile's sequence.
        chunk: keys per chunk, a multiple of the candidate block size.
    """

    fetch: Callable[[Array], Keys]
    chunk: int


class Running(NamedTuple):
    """The best keys so far, equal values by ascending key."""

    values: Array  # [rows, k] float32, -inf where empty
    keys: Array  # [rows, k] int32, -1 where empty


def empty(rows: int, k: int) -> Running:
    return Running(jnp.full((rows, k), -jnp.inf), jnp.full((rows, k), -1, jnp.int32))


def merge(best: Running, values: Array, keys: Array) -> Running:
    """Take the k best of the running list and new values [rows, n] whose keys all come later."""
    values = jnp.concatenate([best.values, values], axis=-1)
    keys = jnp.concatenate(
        [best.keys, jnp.broadcast_to(keys, values[:, best.values.shape[1] :].shape)], -1
    )
    values, places = lax.top_k(values, best.values.shape[1])
    keys = jnp.take_along_axis(keys, places, axis=-1)
    return Running(values, jnp.where(values == -jnp.inf, -1, keys))


def append_or_merge(best: Running, values: Array, keys: Array, first: Array) -> Running:
    """Take new values [rows, n], the `first`-th and following of their row, into the running list.

    While all of them fit they are appended as they are, which spares sorting a long list again and
    again; `merge` does not need its list sorted, only equal values by ascending key.
    """
    count, kept = values.shape[1], best.values.shape[1]
    if count > kept:
        return merge(best, values, keys)

    def append() -> Running:
        listed = jnp.where(values == -jnp.inf, -1, keys)
        return Running(
            lax.dynamic_update_slice_in_dim(best.values, values, first, axis=1),
            lax.dynamic_update_slice_in_dim(best.keys, listed, first, axis=1),
        )

    return lax.cond(first + count <= kept, append, lambda: merge(best, values, keys))


def ascending(keys: Array) -> Array:
    """Sort each row's keys ascending with the -1 padding last."""
    last = jnp.iinfo(jnp.int32).max
    ordered = jnp.sort(jnp.where(keys < 0, last, keys), axis=-1)
    return jnp.where(ordered == last, -1, ordered)


def scores(queries: Queries, keys: Keys, store: Callable[[Array], Array]) -> Array:
    """sum_h weight_h max(query_h . key, 0), rounded by `store`, as float32.

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
    total = store(total).astype(jnp.float32)
    return jnp.where(total == 0, 0.0, total)


def full_scan(
    queries: Queries,
    readers: Sequence[Reader],
    topk: int,
    store: Callable[[Array], Array],
    candidates: tuple[int, int] | None = None,
) -> tuple[Array, Array | None]:
    """The best keys of each row among all visible ones, and its candidate blocks.

    Args:
        readers: from large chunks to small ones, each chunk a multiple of the next: large chunks
            cost less per key, small ones waste less at the end.
        topk: keys to keep.
        candidates: (blocks to keep, keys per block), or None.

    Returns:
        keys [rows, topk] ascending, -1 padded; candidate blocks [rows, blocks] likewise, or None.
    """
    rows = queries.heads.shape[0]
    blocks, size = candidates or (0, 1)
    state = (empty(rows, topk), empty(rows, blocks))
    longest = jnp.max(queries.visible_keys)
    done = jnp.int32(0)  # keys
    for place, (fetch, chunk) in enumerate(readers):
        last = place == len(readers) - 1
        end = -(-longest // chunk) if last else longest // chunk

        def step(
            number: Array, state: tuple[Running, Running], fetch: Any = fetch, chunk: int = chunk
        ) -> tuple[Running, Running]:
            keys = number * chunk + jnp.arange(chunk, dtype=jnp.int32)
            visible = keys < queries.visible_keys[:, None]
            score = jnp.where(visible, scores(queries, fetch(number), store), -jnp.inf)
            best, best_blocks = state
            if candidates is not None:
                found = block_maxima(score, keys[0], queries.visible_keys, size)
                best_blocks = append_or_merge(best_blocks, *found)
            return merge(best, score, keys), best_blocks

        state = lax.fori_loop(done // chunk, end, step, state)
        done = end * chunk
    best, best_blocks = state
    if candidates is None:
        return ascending(best.keys), None
    # while every block fits they were appended in order
    in_order = done // size <= blocks
    kept = lax.cond(in_order, lambda keys: keys, ascending, best_blocks.keys)
    return ascending(best.keys), kept


def block_maxima(
    score: Array, first_key: Array, visible_keys: Array, size: int
) -> tuple[Array, Array, Array]:
    """(maxima [rows, n], block numbers [n], the first of them) of scores of consecutive keys.

    The last block of a row is always kept: it may be the newest, partial one (model.md 6.5).
    """
    maxima = jnp.max(score.reshape(score.shape[0], -1, size), axis=-1)
    maxima = jnp.minimum(maxima, jnp.finfo(jnp.bfloat16).max.astype(jnp.float32))
    numbers = first_key // size + jnp.arange(maxima.shape[1], dtype=jnp.int32)
    visible = visible_keys[:, None]
    newest = (numbers == (visible - 1) // size) & (visible > 0)
    return jnp.where(newest, jnp.inf, maxima), numbers, numbers[0]


def candidate_scan(
    queries: Queries,
    fetch: Callable[[Array], Keys],
    candidate_blocks: Array,
    size: int,
    blocks_per_chunk: int,
    topk: int,
    store: Callable[[Array], Array],
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
        score = scores(queries, fetch(jnp.where(allowed, keys, 0)), store)
        return merge(best, jnp.where(allowed, score, -jnp.inf), keys)

    used = jnp.max(jnp.sum(candidate_blocks >= 0, axis=1))
    chunks = jnp.minimum(-(-used // blocks_per_chunk), blocks // blocks_per_chunk)
    best = lax.fori_loop(0, chunks, step, empty(rows, topk))
    return ascending(best.keys)
