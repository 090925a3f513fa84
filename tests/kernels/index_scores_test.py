"""Selection of keys: golden lists with ties, and both scans against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import golden

from dsinfer_jax.kernels import index_scores
from dsinfer_jax.kernels.index_scores import Queries

BLOCK = 8


def queries_with_scores(scores: np.ndarray, visible: np.ndarray) -> tuple[Queries, jax.Array]:
    """Queries and keys whose scores are the given ones: one head for each sign."""
    rows, count = scores.shape
    one_hot = np.eye(rows, dtype=np.float32)
    queries = Queries(
        heads=jnp.asarray(np.stack([one_hot, -one_hot], axis=1)),
        weights=jnp.asarray(np.tile(np.float32([1, -1]), (rows, 1))),
        visible_keys=jnp.asarray(visible, jnp.int32),
    )
    keys = np.zeros((-(-count // BLOCK) * BLOCK, rows), np.float32)
    keys[:count] = scores.T
    return queries, jnp.asarray(keys)


def run_full_scan(queries, keys, chunk, topk, candidates=None, tiles=1):
    def fetch(number):
        some = jax.lax.dynamic_slice_in_dim(keys, number * chunk, chunk, axis=-2)
        some = some if some.ndim == 3 else jnp.broadcast_to(some, (tiles, *some.shape))
        return tuple(jnp.split(some, 2, axis=-1)) if some.shape[-1] % 2 == 0 else (some,)

    return jax.jit(
        lambda: index_scores.full_scan(queries, fetch, chunk, topk, jnp.float32, candidates)
    )()


@pytest.mark.parametrize("chunk", [8, 104])
def test_golden_lists(chunk):
    """Ties between equal scores and between zeros of both signs go to the lower key."""
    queries, keys = queries_with_scores(golden("topk.scores"), golden("topk.visible"))
    found, blocks = run_full_scan(queries, keys, chunk, 16, (8, BLOCK))
    np.testing.assert_array_equal(found, golden("topk.full_ids_k16"))
    np.testing.assert_array_equal(blocks, golden("topk.block_ids_8of8"))


@pytest.mark.parametrize("blocks_per_chunk", [1, 4, 8])
def test_golden_restricted_lists(blocks_per_chunk):
    queries, keys = queries_with_scores(golden("topk.scores"), golden("topk.visible"))
    found = jax.jit(
        lambda: index_scores.candidate_scan(
            queries,
            lambda numbers: (keys[numbers],),
            jnp.asarray(golden("topk.block_ids_8of8")),
            BLOCK,
            blocks_per_chunk,
            16,
            jnp.float32,
        )
    )()
    np.testing.assert_array_equal(found, golden("topk.restricted_ids_k16"))


def test_the_last_block_is_forced():
    """The newest block is kept whatever its score, and keys in it may still lose."""
    scores = np.linspace(10, 1, 100, dtype=np.float32)[None]
    queries, keys = queries_with_scores(scores, np.array([100]))
    found, blocks = run_full_scan(queries, keys, 104, 16, (8, BLOCK))
    assert np.asarray(blocks)[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 12]
    assert np.asarray(found)[0].tolist() == list(range(16))


def reference_scores(queries: Queries, keys: np.ndarray) -> np.ndarray:
    """[rows, keys] from the definition; keys [tiles, keys, width]."""
    heads = np.asarray(queries.heads, np.float64)
    rows_per_tile = len(heads) // len(keys)
    products = np.einsum("rhd,rnd->rhn", heads, np.repeat(keys, rows_per_tile, axis=0))
    return np.einsum("rhn,rh->rn", np.maximum(products, 0), np.asarray(queries.weights))


def best(scores: np.ndarray, allowed: np.ndarray, count: int) -> list[int]:
    order = [key for key in np.argsort(-scores, kind="stable") if allowed[key]]
    return sorted(order[:count])


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_scans_against_numpy(chunk):
    """Small integers, so that scores are exact and ties frequent; several tiles with own keys."""
    random = np.random.default_rng(chunk)
    tiles, rows, heads, width, count = 3, 12, 4, 8, 64
    keys = random.integers(-2, 3, (tiles, count, width)).astype(np.float32)
    queries = Queries(
        heads=jnp.asarray(random.integers(-2, 3, (rows, heads, width)), jnp.float32),
        weights=jnp.asarray(random.integers(-2, 3, (rows, heads)), jnp.float32),
        visible_keys=jnp.asarray(random.integers(0, count + 1, rows), jnp.int32),
    )
    found, blocks = run_full_scan(queries, jnp.asarray(keys), chunk, 10, (4, BLOCK))
    row_keys = jnp.repeat(jnp.asarray(keys), rows // tiles, axis=0)
    restricted = index_scores.candidate_scan(
        queries,
        lambda numbers: (jnp.take_along_axis(row_keys, numbers[..., None], axis=1),),
        blocks,
        BLOCK,
        2,
        10,
        jnp.float32,
    )
    scores = reference_scores(queries, keys)
    for row, visible in enumerate(np.asarray(queries.visible_keys)):
        seen = np.arange(count) < visible
        assert _listed(found[row]) == best(scores[row], seen, 10)
        chosen = _listed(blocks[row])
        maxima = np.where(seen, scores[row], -np.inf).reshape(-1, BLOCK).max(axis=1)
        if visible:
            maxima[(visible - 1) // BLOCK] = np.inf
        assert chosen == best(maxima, maxima > -np.inf, 4)
        inside = seen & np.isin(np.arange(count) // BLOCK, chosen)
        assert _listed(restricted[row]) == best(scores[row], inside, 10)


def _listed(row) -> list[int]:
    row = np.asarray(row)
    kept = row[row >= 0]
    assert (row[len(kept) :] == -1).all(), "padding comes last"
    return kept.tolist()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("k", [1, 7, 64])
def test_running_list_against_sorting(k, dtype):
    """Pieces of any size, ties, infinities, rows that see nothing: the stable order of numpy."""
    random = np.random.default_rng(k)
    values = np.asarray(jnp.asarray(random.standard_normal((5, 200)), jnp.bfloat16), np.float32)
    values[0, ::3], values[1, 50:], values[2] = 0.5, -np.inf, -np.inf
    values[3, 17] = np.inf
    best = index_scores.empty(5, k)
    for piece in np.split(np.arange(200), [3, 90, 91]):
        best = index_scores.merge(best, jnp.asarray(values[:, piece]), jnp.asarray(piece), dtype)
    for row in range(5):
        order = [
            key for key in np.argsort(-values[row], kind="stable") if values[row, key] > -np.inf
        ]
        expected = sorted(order[:k])
        assert np.asarray(best.keys[row]).tolist() == expected + [-1] * (k - len(expected))
        np.testing.assert_array_equal(
            np.asarray(best.values[row])[: len(expected)], values[row, expected]
        )
