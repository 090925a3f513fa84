"""Hashed n-gram memory against golden data: primes, look-back, table rows, gate."""

import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import CLOSE, golden

from dsinfer_jax.config import EngramConfig, v41_flash
from dsinfer_jax.model.engram import fold_tokens, gate, table_rows
from dsinfer_jax.model.hashing import limbs, multipliers
from dsinfer_jax.model.params import HashParams

CASES = {
    "engram": EngramConfig((1, 3), 3, 700, 3, 128, 2, None),
    "engram_big": EngramConfig((2, 14), 3, 24_000_000, 8, 128, 2, None),
}


def hashes_of(name: str, token_map: np.ndarray) -> HashParams:
    factors = [golden(f"{name}.layer{layer}.multipliers") for layer in CASES[name].layer_ids]
    return HashParams(
        token_map=jnp.asarray(token_map),
        pad_id=jnp.asarray(token_map[2]),
        multipliers=jnp.asarray(limbs(np.stack(factors))),
    )


def look_back_of(tokens: np.ndarray, hashes: HashParams, count: int = 3) -> np.ndarray:
    """[tokens, count], latest first, of one sequence from its start."""
    position = np.arange(len(tokens))[:, None] - np.arange(count)
    exists = position >= 0
    found = fold_tokens(jnp.asarray(tokens[np.maximum(position, 0)]), jnp.asarray(exists), hashes)
    return np.asarray(found)


@pytest.mark.parametrize("name", CASES)
def test_primes(name):
    config = CASES[name]
    for layer, orders in zip(config.layer_ids, config.primes, strict=True):
        np.testing.assert_array_equal(orders, golden(f"{name}.layer{layer}.primes"))


def test_multipliers():
    compressed_size = int(golden("engram.token_map").max()) + 1
    for layer in CASES["engram"].layer_ids:
        found = multipliers(layer, compressed_size, 3)
        np.testing.assert_array_equal(found, golden(f"engram.layer{layer}.multipliers"))


def test_look_back_and_rows():
    hashes = hashes_of("engram", golden("engram.token_map"))
    ngrams = look_back_of(golden("engram.ids"), hashes)
    np.testing.assert_array_equal(ngrams[:, 0], golden("engram.compressed_ids"))
    np.testing.assert_array_equal(ngrams, golden("engram.ngrams"))
    config = CASES["engram"]
    for layer, rows in zip(
        config.layer_ids, table_rows(jnp.asarray(ngrams), hashes, config), strict=True
    ):
        np.testing.assert_array_equal(rows, golden(f"engram.layer{layer}.rows"))


def test_an_image_stops_the_look_back():
    """The image token and everything before it become the pad id; folded ids stand for tokens."""
    hashes = hashes_of("engram", np.arange(1024, dtype=np.int32))
    ngrams = look_back_of(golden("engram.with_images.compressed_ids"), hashes)
    np.testing.assert_array_equal(ngrams, golden("engram.with_images.ngrams"))


def test_rows_of_large_tables():
    """Row numbers near 400 million, from 63-bit products, in 32-bit arithmetic."""
    config, ids = CASES["engram_big"], golden("engram_big.compressed_ids")
    hashes = hashes_of("engram_big", np.arange(100_000, dtype=np.int32))
    ngrams = look_back_of(ids, hashes)
    for layer, rows in zip(
        config.layer_ids, table_rows(jnp.asarray(ngrams), hashes, config), strict=True
    ):
        np.testing.assert_array_equal(rows, golden(f"engram_big.layer{layer}.rows"))


def test_published_rows():
    """The check values of model.md 8.3."""
    config = v41_flash().engram
    assert config is not None
    factors = np.stack([multipliers(layer, 99092, 4) for layer in config.layer_ids])
    hashes = HashParams(jnp.zeros(1, jnp.int32), jnp.int32(0), jnp.asarray(limbs(factors)))
    found = table_rows(jnp.array([[5, 7, 11, 13]], jnp.int32), hashes, config)
    columns = np.array([0, 7, 8, 15, 16, 23])
    assert np.asarray(found[0])[0, columns].tolist() == [
        6961830, 125113896, 128920094, 253542237, 267226692, 372696692,
    ]  # fmt: skip
    assert np.asarray(found[1])[0, columns].tolist() == [
        937800, 117237088, 132251331, 248022513, 264480591, 376768797,
    ]  # fmt: skip


def test_gate():
    """All golden gates but the one whose product is exactly 0: the sources differ there."""
    streams, kv = golden("engram_gate.streams"), golden("engram_gate.kv")
    keys, value = kv[:, :-1], kv[:, -1:]
    weight = golden("engram_gate.q_weight") * golden("engram_gate.k_weight")
    found = np.asarray(gate(*map(jnp.asarray, (streams, keys, weight)), 1e-20))
    decided = (streams * weight * keys).sum(axis=-1) != 0
    assert decided.sum() == decided.size - 1
    np.testing.assert_allclose(found[decided], golden("engram_gate.gate")[decided], **CLOSE)
    np.testing.assert_allclose(found[~decided], 0.50025, atol=1e-6)  # model.md 8.5
    updated = streams + found[..., None] * value
    np.testing.assert_allclose(updated[decided], golden("engram_gate.out")[decided], **CLOSE)


@pytest.mark.parametrize(
    ("product", "expected"), [(0.0, 0.50025), (-0.0, 0.49975), (0.25, 0.622459), (-4, 0.119203)]
)
def test_gate_check_values(product, expected):
    """The check values of model.md 8.5: one channel, so that the product is the given number."""
    ones = jnp.ones((1, 1, 1))
    found = gate(ones, ones, jnp.full((1, 1), product, jnp.float32), 1e-20)
    assert float(found[0, 0]) == pytest.approx(expected, abs=2e-6)
