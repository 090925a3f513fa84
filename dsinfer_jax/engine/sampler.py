"""From logits to tokens, on the device, inside the compiled step (engine.md 5).

The law of a token is softmax(logits / temperature), restricted by top-k and top-p to a prefix of
the tokens in descending order of their logit, lowest id first among equals. Probabilities become
31-bit integers: their sums do not depend on the order of addition, so that the same row gives the
same token in any batch.

A row that is not finite is marked, draws from zeros, and leaves the other rows alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import register_dataclass

from dsinfer_jax.engine.random import Purpose, random_words, seed_words
from dsinfer_jax.engine.request import SamplingParams

Array = jax.Array
Leaf = jax.Array | np.ndarray  # numpy on the host, device arrays inside a program

_ONE = 2.0**31  # mass of probability one
_UNLIMITED = np.uint32(2**32 - 1)  # no sum of masses exceeds it
_KEY_BITS = 32
_COLDEST = 1e-5  # positive temperatures below it count as this: less would leave float32


@register_dataclass
@dataclass(frozen=True)
class Draws:
    """How to choose the token of each row."""

    temperature: Leaf  # [rows] float32; 0: the largest logit
    top_k: Leaf  # [rows] int32; 2^31 - 1 when off
    top_mass: Leaf  # [rows] uint32: top_p in units of 2^-31; 2^32 - 1 when off
    seeds: Leaf  # [rows, 2] uint32
    positions: Leaf  # [rows] int32: absolute position of the token to choose


@register_dataclass
@dataclass(frozen=True)
class Sample:
    """The chosen tokens."""

    token_ids: Leaf  # [rows] int32
    logprobs: Leaf  # [rows] float32, of the raw law: no temperature, no filters
    failed: Leaf  # [rows] bool: the row's logits are not finite; its token means nothing


def idle_draws(rows: int) -> Draws:
    """Draws of rows that nobody reads (numpy): the largest logit."""
    return Draws(
        temperature=np.zeros(rows, np.float32),
        top_k=np.full(rows, 2**31 - 1, np.int32),
        top_mass=np.full(rows, _UNLIMITED, np.uint32),
        seeds=np.zeros((rows, 2), np.uint32),
        positions=np.zeros(rows, np.int32),
    )


def set_draw(draws: Draws, row: int, params: SamplingParams, seed: int, position: int) -> None:
    """Write one row of host draws."""
    warm = max(params.temperature, _COLDEST) if params.temperature > 0 else 0.0
    draws.temperature[row] = warm
    draws.top_k[row] = params.top_k if params.top_k > 0 else 2**31 - 1
    limit = _UNLIMITED if params.top_p == 1 else int(params.top_p * _ONE)
    draws.top_mass[row] = limit
    draws.seeds[row] = seed_words(seed)
    draws.positions[row] = position


def host_draws(rows: Sequence[tuple[SamplingParams, int, int]], size: int) -> Draws:
    """Draws of (params, seed, position) rows, padded to `size` rows (numpy)."""
    draws = idle_draws(size)
    for row, (params, seed, position) in enumerate(rows):
        set_draw(draws, row, params, seed, position)
    return draws


def sample(logits: Array, draws: Draws) -> Sample:
    """Choose one token for each row of logits [rows, vocab] float32."""
    with jax.named_scope("sample"):
        failed = ~jnp.all(jnp.isfinite(logits), axis=-1)
        logits = jnp.where(failed[:, None], 0.0, logits)
        greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        # Both are chosen by data, so a batch pays for draws and filters only if a row needs them.
        drawn = lax.cond(
            jnp.any(draws.temperature > 0), lambda: _draw(logits, draws), lambda: greedy
        )
        token_ids = jnp.where(draws.temperature > 0, drawn, greedy)
        chosen = jnp.take_along_axis(logits, token_ids[:, None], axis=-1)[:, 0]
        logprobs = chosen - jax.nn.logsumexp(logits, axis=-1)
        return Sample(token_ids, logprobs, failed)


def masses(logits: Array, temperature: Leaf) -> Array:
    """Probabilities in units of 2^-31, rounded down: uint32 [rows, vocab]."""
    warm = jnp.where(temperature > 0, temperature, 1.0)[:, None]
    centred = logits - jnp.max(logits, axis=-1, keepdims=True)
    return (jax.nn.softmax(centred / warm, axis=-1) * _ONE).astype(jnp.uint32)


def kept_tokens(logits: Array, mass: Array, top_k: Leaf, top_mass: Leaf) -> Array:
    """What top-k and top-p keep: bool [rows, vocab] (engine.md 5.3).

    Both keep a prefix of the order (logit descending, id ascending). Of equal logits at the end of
    the prefix the lowest ids are kept. A threshold search needs no sort of the vocabulary.
    """
    keys = _ordered_keys(logits)
    ones = jnp.ones_like(mass)
    by_count = _prefix(keys, ones, top_k.astype(jnp.uint32) - 1)
    return by_count & _prefix(keys, mass, top_mass)


def _draw(logits: Array, draws: Draws) -> Array:
    mass = masses(logits, draws.temperature)
    filtered = (draws.top_k < logits.shape[-1]) | (draws.top_mass != _UNLIMITED)
    kept = lax.cond(
        jnp.any(filtered & (draws.temperature > 0)),
        lambda: kept_tokens(logits, mass, draws.top_k, draws.top_mass),
        lambda: jnp.ones(logits.shape, bool),
    )
    sums = jnp.cumsum(jnp.where(kept, mass, 0), axis=-1, dtype=jnp.uint32)
    words = random_words(jnp.asarray(draws.seeds), jnp.asarray(draws.positions), Purpose.FRESH)
    # word / 2^32 of the total: a token's share of the words is off by less than 2^-31
    target = _high_product(words, sums[:, -1])
    return jnp.argmax(sums > target[:, None], axis=-1).astype(jnp.int32)


def _ordered_keys(logits: Array) -> Array:
    """Unsigned integers in the order of the logits; the two zeros are equal."""
    bits = lax.bitcast_convert_type(logits + 0.0, jnp.uint32)
    negative = bits >> 31 == 1
    return jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))


def _prefix(keys: Array, weights: Array, limit: Leaf) -> Array:
    """Keep a token iff the weight strictly before it, in descending order, is at most `limit`.

    Args:
        keys, weights: [rows, vocab] uint32; all weights of a row sum to less than 2^32.
        limit: [rows] uint32.
    """

    def weight_from(threshold: Array) -> Array:
        return jnp.sum(jnp.where(keys >= threshold[:, None], weights, 0), axis=-1, dtype=jnp.uint32)

    def decide_bit(step: Array, threshold: Array) -> Array:
        raised = threshold | (jnp.uint32(1) << (_KEY_BITS - 1 - step).astype(jnp.uint32))
        return jnp.where(weight_from(raised) > limit, raised, threshold)

    # the largest key whose weight from there up exceeds the limit; 0 if all together do not
    threshold = lax.fori_loop(0, _KEY_BITS, decide_bit, jnp.zeros_like(limit))[:, None]
    above, equal = keys > threshold, keys == threshold
    weight_above = jnp.sum(jnp.where(above, weights, 0), axis=-1, dtype=jnp.uint32)
    equal_weights = jnp.where(equal, weights, 0)
    before = jnp.cumsum(equal_weights, axis=-1, dtype=jnp.uint32) - equal_weights
    return above | (equal & (weight_above[:, None] + before <= limit[:, None]))


def _high_product(a: Array, b: Array) -> Array:
    """The upper 32 bits of the 64-bit product of uint32 numbers."""
    low, high = a & 0xFFFF, a >> 16
    b_low, b_high = b & 0xFFFF, b >> 16
    middle = high * b_low + (low * b_low >> 16)
    carried = low * b_high + (middle & 0xFFFF)
    return high * b_high + (middle >> 16) + (carried >> 16)
