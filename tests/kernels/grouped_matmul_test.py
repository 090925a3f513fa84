"""Grouped products against a loop over pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsinfer_jax.kernels import block_formats as formats
from dsinfer_jax.kernels.grouped_matmul import group_pairs, grouped_matmul

EXPERTS, TILE, WIDTH, COLUMNS, LAYERS = 5, 8, 64, 40, 2

CASES = {
    "every expert": np.arange(40) % EXPERTS,
    "one expert": np.full(17, 3),
    "empty experts": np.array([4, 1, 1, 4, 4, 1, 4, 4, 4, 4, 4, 4]),
    "padding rows": np.array([EXPERTS, 2, EXPERTS, 0, 2, EXPERTS]),
    "nothing but padding": np.full(8, EXPERTS),
    "a single pair": np.array([2]),
}


@pytest.fixture(scope="module")
def weights():
    random = np.random.default_rng(1)
    packed = random.integers(0, 256, (LAYERS, EXPERTS, COLUMNS, WIDTH // 2), np.uint8)
    scale = random.integers(124, 130, (LAYERS, EXPERTS, COLUMNS, WIDTH // 32)).astype(np.uint8)
    return jnp.asarray(packed), jnp.asarray(scale)


@pytest.mark.parametrize("name", CASES)
def test_places_of_pairs(name):
    """Each pair has one place in a tile of its expert; padding pairs have none."""
    experts = CASES[name]
    groups = group_pairs(jnp.asarray(experts, jnp.int32), EXPERTS, TILE)
    place, source = np.asarray(groups.place), np.asarray(groups.source)
    real = experts < EXPERTS
    assert len(set(place[real])) == real.sum()
    np.testing.assert_array_equal(source[place[real]], np.flatnonzero(real))
    np.testing.assert_array_equal(
        np.asarray(groups.tile_expert)[place[real] // TILE], experts[real]
    )
    assert (place[~real] >= len(source)).all()
    assert (source == len(experts)).sum() == len(source) - real.sum()
    tiles = -(-np.bincount(experts, minlength=EXPERTS)[:EXPERTS] // TILE)
    assert int(groups.tiles_used) == tiles.sum()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layer", range(LAYERS))
def test_products(weights, name, layer):
    packed, scale = weights
    experts = CASES[name]
    random = np.random.default_rng(2)
    x = random.standard_normal((len(experts) + 1, WIDTH)).astype(np.float32)
    x[-1] = 0  # what empty places hold
    dense = np.asarray(formats.decode_e2m1_rows(packed, scale, jnp.float32), np.float64)

    def run(x):
        groups = group_pairs(jnp.asarray(experts, jnp.int32), EXPERTS, TILE)
        return groups.place, grouped_matmul(x[groups.source], packed, scale, layer, groups)

    place, found = map(np.asarray, jax.jit(run)(x))
    for pair, expert in enumerate(experts):
        if expert < EXPERTS:
            expected = dense[layer, expert] @ x[pair].astype(np.float64)
            np.testing.assert_allclose(found[place[pair]], expected, rtol=1e-5, atol=1e-4)
    empty = np.setdiff1d(np.arange(len(found)), place)
    assert not found[empty].any()
