"""Random words depend on seed, position and purpose, and on nothing else."""

import jax.numpy as jnp
import numpy as np

from dsinfer_jax.engine.random import Purpose, random_words, seed_words


def words(seeds: list[int], positions: list[int], purpose: Purpose = Purpose.FRESH) -> list[int]:
    rows = jnp.asarray(np.stack([seed_words(seed) for seed in seeds]))
    return np.asarray(random_words(rows, jnp.asarray(positions, jnp.int32), purpose)).tolist()


def test_a_word_does_not_depend_on_its_row() -> None:
    seeds, positions = [7, 7, 2**63 + 5, 0], [0, 900, 3, 0]
    together = words(seeds, positions)
    assert together == [words([seed], [place])[0] for seed, place in zip(seeds, positions)]
    assert words(seeds[::-1], positions[::-1]) == together[::-1]


def test_seed_position_and_purpose_all_count() -> None:
    given = [
        words([7], [5])[0],
        words([8], [5])[0],
        words([7 + 2**32], [5])[0],
        words([7 + 2**63], [5])[0],
        words([7], [6])[0],
        *(words([7], [5], purpose)[0] for purpose in list(Purpose)[1:]),
    ]
    assert len(set(given)) == len(given)


def test_words_are_fixed_for_all_time() -> None:
    """A change here changes every seeded answer: bump the version and say so."""
    assert words([1234], [56]) == [1537947905]
