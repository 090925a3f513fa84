"""Attention over gathered keys: sink, invisible keys, the paged form against the dense one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import CLOSE, golden

from dsinfer_jax.kernels.sparse_attention import PagedKeys, attend, map_rows, sparse_attention

FLOAT32 = jnp.dtype(jnp.float32)


def test_sink():
    query, keys = golden("attn_sink.q"), golden("attn_sink.kv")
    rows, _, width = query.shape
    found = attend(
        jnp.asarray(query),
        jnp.broadcast_to(keys, (rows, *keys.shape)),
        jnp.asarray(golden("attn_sink.mask") != 0),
        jnp.asarray(golden("attn_sink.sink")),
        width**-0.5,
        FLOAT32,
    )
    np.testing.assert_allclose(found, golden("attn_sink.out"), **CLOSE)


def test_no_visible_key_gives_zeros():
    ones = jnp.ones((2, 3, 8))
    found = attend(ones, ones, jnp.zeros((2, 3), bool), jnp.zeros(3), 1.0, FLOAT32)
    np.testing.assert_array_equal(found, np.zeros((2, 3, 8)))


@pytest.mark.parametrize("rows", [8, 24, 64])
def test_gathered_equals_dense(rows):
    """Window and paged keys, with NaN in every place that is not visible."""
    random = np.random.default_rng(rows)
    window, selected, places, blocks, per_block, width = 5, 7, 40, 6, 4, 32
    query = random.standard_normal((rows, 2, width)).astype(np.float32)
    pool = random.standard_normal((places, width)).astype(np.float32)
    pages = random.standard_normal((blocks, per_block, width)).astype(np.float32)
    pool[-3:], pages[-1] = np.nan, np.nan
    index = random.integers(0, places, (rows, window))
    block = random.integers(0, blocks, (rows, selected))
    offset = random.integers(0, per_block, (rows, selected))
    window_visible = (index < places - 3) & (random.random(index.shape) < 0.7)
    page_visible = (block < blocks - 1) & (random.random(block.shape) < 0.7)
    sink = random.standard_normal(2).astype(np.float32)
    sources = jnp.stack([jnp.full(pages.shape, jnp.nan), jnp.asarray(pages)])
    paged = PagedKeys(sources, 1, *map(jnp.asarray, (block, offset, page_visible)))
    found = jax.jit(
        lambda query: sparse_attention(
            query, jnp.asarray(pool), jnp.asarray(index), jnp.asarray(window_visible), paged,
            lambda page: page, jnp.asarray(sink), 0.3, FLOAT32,
        )
    )(query)  # fmt: skip
    for row in range(rows):
        keys = np.concatenate(
            [pool[index[row]][window_visible[row]],
             pages[block[row], offset[row]][page_visible[row]]]
        ).astype(np.float64)  # fmt: skip
        for head in range(2):
            weights = np.exp(keys @ query[row, head] * 0.3)
            expected = weights @ keys / (weights.sum() + np.exp(sink[head]))
            np.testing.assert_allclose(found[row, head], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 4, 8, 10])
def test_map_rows(rows):
    x = {"a": jnp.arange(rows * 2.0).reshape(rows, 2), "b": jnp.arange(float(rows))}
    found = map_rows(lambda part: part["a"] * part["b"][:, None], x, 4)
    np.testing.assert_array_equal(found, x["a"] * x["b"][:, None])
