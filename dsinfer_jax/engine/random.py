"""Random words as a function of (seed, absolute position, purpose) alone (design.md 6).

A row's place in the batch, the step number and the bucket do not enter, so a request draws the same
words alone and in company.
"""

from enum import IntEnum

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


class Purpose(IntEnum):
    """What a word is for; words of different purposes are independent (engine.md 5.6)."""

    FRESH = 0  # a token without a draft
    RESIDUAL = 1  # a token in place of a rejected draft
    ACCEPT = 2  # whether a draft is accepted
    DRAFT = 3  # a drafted token


def seed_words(seed: int) -> np.ndarray:
    """A 64-bit seed as the two words of a key: uint32 [2], high word first."""
    return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


def random_words(seeds: Array, positions: Array, purpose: Purpose) -> Array:
    """One word for each row: uint32 [rows].

    Args:
        seeds: [rows, 2] uint32, from `seed_words`.
        positions: [rows] int32, absolute position of the token that the word decides on.
    """

    def word(seed: Array, position: Array) -> Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, position), int(purpose))
        return jax.random.bits(key, (), jnp.uint32)

    return jax.vmap(word)(seeds, positions)
