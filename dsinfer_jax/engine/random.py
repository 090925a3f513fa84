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
    COUPLED = 4  # noise of a token that a draft shares with its target (design.md 6)


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
        return jax.random.bits(_key(seed, position, purpose), (), jnp.uint32)

    return jax.vmap(word)(seeds, positions)


def gumbel_noise(seeds: Array, positions: Array, vocab_size: int) -> Array:
    """Standard Gumbel noise as a function of (seed, position, vocabulary id): [rows, vocab].

    Adding it to the logarithms of any law and taking the largest draws from that law, so a draft
    and its target that share the noise often agree.

    Args:
        seeds, positions: as in `random_words`.
    """

    def words(seed: Array, position: Array) -> Array:
        return jax.random.bits(_key(seed, position, Purpose.COUPLED), (vocab_size,), jnp.uint32)

    # 1 - u, so that the resolution is finest where the noise is large; below 1, so it is finite
    rest = (jax.vmap(words)(seeds, positions).astype(jnp.float32) + 0.5) * 2.0**-32
    return -jnp.log(-jnp.log1p(-jnp.minimum(rest, 1 - 2.0**-24)))


def _key(seed: Array, position: Array, purpose: Purpose) -> Array:
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, position), int(purpose))
