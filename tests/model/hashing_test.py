"""Hash multipliers against published and independently computed numbers (model.md 8.3)."""

import numpy as np
import pytest

from dsinfer_jax.config import tiny, v41_flash
from dsinfer_jax.model.hashing import hash_params, limbs, multipliers

PUBLISHED_SIZE = 99092
KNOWN_MULTIPLIERS = [
    (1, PUBLISHED_SIZE, [76632096046245, 4839876093313, 35959672319349, 73987337458391]),
    (14, PUBLISHED_SIZE, [67716810739261, 51510806800915, 30921347202721, 82619226485591]),
    (1, 736, [10317428887791621, 651620926411173, 4841461751995875]),
    (3, 736, [3706118356833369, 10994262951699617, 1464559725042337]),
    (2, 100003, [75810507590099, 36759854397139, 22441074057603]),
    (14, 100003, [67099929099875, 51041557428441, 30639662180255]),
]


@pytest.mark.parametrize(("layer", "size", "expected"), KNOWN_MULTIPLIERS)
def test_multipliers(layer: int, size: int, expected: list[int]) -> None:
    assert multipliers(layer, size, len(expected)).tolist() == expected


@pytest.mark.parametrize(
    ("layer", "rows"),
    [
        (1, [6961830, 125113896, 128920094, 253542237, 267226692, 372696692]),
        (14, [937800, 117237088, 132251331, 248022513, 264480591, 376768797]),
    ],
)
def test_multipliers_and_primes_give_the_published_rows(layer: int, rows: list[int]) -> None:
    """The check of model.md 8.3 in unbounded integers: compressed ids 5, 7, 11, 13."""
    engram = v41_flash().engram
    assert engram is not None
    primes = engram.primes[engram.layer_ids.index(layer)]
    factors = multipliers(layer, PUBLISHED_SIZE, 4).tolist()
    value, offset, computed = 5 * factors[0], 0, []
    for compressed, factor, order in zip((7, 11, 13), factors[1:], primes, strict=True):
        value ^= compressed * factor
        for prime in order:
            computed.append(value % prime + offset)
            offset += prime
    assert [computed[column] for column in (0, 7, 8, 15, 16, 23)] == rows


def test_products_stay_below_two_to_the_63() -> None:
    for size in (1, 2, 736, PUBLISHED_SIZE):
        largest = max(multipliers(layer, size, 4).max() for layer in range(50))
        assert int(largest) * (size - 1) < 2**63


def test_limbs_are_the_digits_lowest_first() -> None:
    values = np.array([[0, 1, 2**16], [2**63 - 1, 76632096046245, 2**48 + 5]])
    digits = limbs(values)
    assert (digits.shape, digits.dtype) == ((2, 3, 4), np.uint32)
    assert digits.max() < 2**16
    assert digits[1, 2].tolist() == [5, 0, 0, 1]
    for value, parts in zip(values.ravel().tolist(), digits.reshape(-1, 4).tolist(), strict=True):
        assert sum(part << 16 * place for place, part in enumerate(parts)) == value


def test_hash_params_of_a_short_map() -> None:
    """Raw ids that the tokenizer does not know are marked with -1."""
    config = tiny()
    token_map = np.array([4, 3, 2, 1, 0, 4], np.int32)
    hashes = hash_params(config, token_map)
    assert hashes.token_map.tolist() == [4, 3, 2, 1, 0, 4, *[-1] * (512 - 6)]
    assert hashes.pad_id == 2
    expected = [multipliers(layer, 5, 4) for layer in (1, 4)]
    assert np.array_equal(hashes.multipliers, limbs(np.stack(expected)))


def test_hash_params_of_a_long_map() -> None:
    """Added tokens beyond the embedding count for the size of the folded vocabulary."""
    hashes = hash_params(tiny(), np.arange(600))
    assert hashes.token_map.tolist() == list(range(512))
    assert np.array_equal(hashes.multipliers[0], limbs(multipliers(1, 600, 4)))


def test_hash_params_refuse_what_they_cannot_use() -> None:
    with pytest.raises(ValueError, match="must hold engram_pad_token_id 2"):
        hash_params(tiny(), np.arange(2))
    with pytest.raises(ValueError, match="no engram_layer_ids"):
        hash_params(tiny(engram_layer_ids=[]), np.arange(512))
