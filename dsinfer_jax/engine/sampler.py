"""From logits to tokens, on the device, inside the compiled step (engine.md 5, docs/sampling.md).

The law of a token is softmax(logits / temperature), of logits that `slot_state.adjust` and a token
mask may have changed, restricted by top-k, top-p and min-p to a prefix of the tokens in descending
order of their logit, lowest id first among equals. Probabilities become 31-bit integers: their sums
do not depend on the order of addition, so that the same row gives the same token in any batch.

A row that is not finite is marked, draws from zeros, and leaves the other rows alone.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass

from dsinfer_jax.engine.draws import ONE, UNLIMITED, Draws, Leaf
from dsinfer_jax.engine.random import Purpose, gumbel_noise, random_words
from dsinfer_jax.engine.sampling_params import MAX_TOP_LOGPROBS
from dsinfer_jax.engine.slot_state import SlotState, adjust, unpacked

Array = jax.Array

_KEY_BITS = 32
LOWEST_LOGPROB = -9999.0  # of a token that cannot be drawn (engine.md 1.4)


@register_dataclass
@dataclass(frozen=True)
class Sample:
    """The chosen tokens, and log-probabilities in the law that each row's draws ask for."""

    token_ids: Leaf  # [rows] int32
    logprobs: Leaf  # [rows] float32, of the chosen tokens
    failed: Leaf  # [rows] bool: the row's logits are not finite; its token means nothing
    top_ids: Leaf  # [rows, 20] int32: the most likely tokens, best first; zeros if not listed
    top_logprobs: Leaf  # [rows, 20] float32


@register_dataclass
@dataclass(frozen=True)
class Proposals:
    """Tokens that were drawn from a drafter's law in the places of rows (speculative.md 6.2)."""

    token_ids: Leaf  # [rows] int32; -1: none
    logits: Leaf  # [rows, vocab]: the law, before temperature and filters
    counters: Leaf  # [rows] int32, of the random words that decide on the proposal


def sample(
    logits: Array,
    draws: Draws,
    state: SlotState,
    masks: Array,
    earlier: Array | None = None,
    proposals: Proposals | None = None,
) -> Sample:
    """Choose one token for each row.

    Args:
        logits: [rows, vocab] float32.
        masks: [rows, mask words] int32, bit sets of allowed tokens; at least one in each row.
        earlier: [rows, n] int32, tokens before each row that `state` has not counted yet; others
            are out of the vocabulary.
        proposals: drawn rows that are not coupled take theirs as often as the law allows.
    """
    with jax.named_scope("sample"):
        failed = ~jnp.all(jnp.isfinite(logits), axis=-1)
        raw = jnp.where(failed[:, None], 0.0, logits)
        changed = _masked(adjust(raw, draws, state, earlier), masks)
        token_ids, kept = choose(changed, draws, proposals=proposals)
        return _described(raw, changed, kept, token_ids, failed, draws)


def _masked(logits: Array, masks: Array) -> Array:
    def masked() -> Array:
        return jnp.where(unpacked(masks, logits.shape[-1]), logits, -jnp.inf)

    return lax.cond(jnp.any(masks != -1), masked, lambda: logits)


def choose(
    logits: Array,
    draws: Draws,
    words: tuple[Purpose, Leaf] | None = None,
    proposals: Proposals | None = None,
) -> tuple[Array, Array]:
    """Tokens [rows], and what the filters keep: bool [rows, vocab].

    Args:
        words: purpose and counters of the random words; None: of fresh tokens by position.
    """
    # Each part is chosen by data, so a batch pays for draws and filters only if a row needs them.
    warm = jnp.asarray(draws.temperature) > 0
    mass = lax.cond(
        jnp.any(warm),
        lambda: masses(logits, draws.temperature),
        lambda: jnp.zeros(logits.shape, jnp.uint32),
    )
    kept = _kept_where_filtered(logits, mass, draws)
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    coupled = jnp.asarray(draws.coupled)
    purpose, counters = words or (Purpose.FRESH, draws.positions)

    def independent() -> Array:
        fresh = _draw(jnp.where(kept, mass, 0), draws, purpose, counters)
        if proposals is None:
            return fresh
        return jnp.where(proposals.token_ids >= 0, _judged(mass, kept, draws, proposals), fresh)

    drawn = lax.cond(jnp.any(warm & ~coupled), independent, lambda: greedy)
    noisy = lax.cond(
        jnp.any(warm & coupled), lambda: _draw_coupled(logits, kept, draws), lambda: greedy
    )
    return jnp.where(warm, jnp.where(coupled, noisy, drawn), greedy), kept


def _kept_where_filtered(logits: Array, mass: Array, draws: Draws) -> Array:
    """`kept_tokens`, at no cost if no drawn row has a filter."""
    filtered = _filtered(draws, logits.shape[-1]) & (jnp.asarray(draws.temperature) > 0)
    return lax.cond(
        jnp.any(filtered),
        lambda: kept_tokens(logits, mass, draws),
        lambda: jnp.ones(logits.shape, bool),
    )


def _filtered(draws: Draws, vocab_size: int) -> Array:
    by_count = jnp.asarray(draws.top_k) < vocab_size
    return by_count | (draws.top_mass != UNLIMITED) | (draws.log_min_p > -jnp.inf)


def masses(logits: Array, temperature: Leaf) -> Array:
    """Probabilities in units of 2^-31, rounded down: uint32 [rows, vocab]."""
    law = jax.nn.softmax(_warm_logits(logits, temperature), axis=-1)
    return (law * ONE).astype(jnp.uint32)


def kept_tokens(logits: Array, mass: Array, draws: Draws) -> Array:
    """What top-k, top-p and min-p keep: bool [rows, vocab] (engine.md 5.3).

    All keep a prefix of the order (logit descending, id ascending). Of equal logits at the end of
    the prefix the lowest ids are kept. A threshold search needs no sort of the vocabulary.
    """
    keys = _ordered_keys(logits)
    ones = jnp.ones_like(mass)
    by_count = _prefix(keys, ones, jnp.asarray(draws.top_k).astype(jnp.uint32) - 1)
    by_ratio = _warm_logits(logits, draws.temperature) >= draws.log_min_p[:, None]
    return by_count & by_ratio & _prefix(keys, mass, draws.top_mass)


def _warm_logits(logits: Array, temperature: Leaf) -> Array:
    """Logits divided by the temperature, 0 the largest; undivided where it is 0."""
    warm = jnp.where(temperature > 0, temperature, 1.0)[:, None]
    return (logits - jnp.max(logits, axis=-1, keepdims=True)) / warm


def _draw(mass: Array, draws: Draws, purpose: Purpose, counters: Leaf) -> Array:
    """Tokens [rows] in proportion to their masses [rows, vocab] uint32."""
    sums = jnp.cumsum(mass, axis=-1, dtype=jnp.uint32)
    words = random_words(jnp.asarray(draws.seeds), jnp.asarray(counters), purpose)
    # word / 2^32 of the total: a token's share of the words is off by less than 2^-31
    target = _high_product(words, sums[:, -1])
    return jnp.argmax(sums > target[:, None], axis=-1).astype(jnp.int32)


def _judged(mass: Array, kept: Array, draws: Draws, proposals: Proposals) -> Array:
    """The proposal, with probability min(1, p / g); else a token of the law max(p - g, 0)."""
    drafted = jnp.asarray(proposals.logits).astype(jnp.float32)
    draft_mass = masses(drafted, draws.temperature)
    draft_kept = _kept_where_filtered(drafted, draft_mass, draws)
    law, draft_law = _shares(mass, kept), _shares(draft_mass, draft_kept)
    token = jnp.maximum(jnp.asarray(proposals.token_ids), 0)
    counters = jnp.asarray(proposals.counters)
    word = random_words(jnp.asarray(draws.seeds), counters, Purpose.ACCEPT)
    uniform = (word >> 8).astype(jnp.float32) * 2.0**-24  # below 1
    p, g = (jnp.take_along_axis(one, token[:, None], axis=-1)[:, 0] for one in (law, draft_law))
    rest = (jnp.maximum(law - draft_law, 0) * ONE).astype(jnp.uint32)
    some = jnp.any(rest > 0, axis=-1, keepdims=True)  # nothing is left by rounding only
    other = _draw(
        jnp.where(some, rest, jnp.where(kept, mass, 0)), draws, Purpose.RESIDUAL, counters
    )
    return jnp.where(uniform * g < p, token, other)


def _shares(mass: Array, kept: Array) -> Array:
    """Probabilities [rows, vocab] float32 of what is kept."""
    chosen = jnp.where(kept, mass, 0)
    total = jnp.sum(chosen, axis=-1, keepdims=True, dtype=jnp.uint32)
    return chosen.astype(jnp.float32) / total.astype(jnp.float32)


def _draw_coupled(logits: Array, kept: Array, draws: Draws) -> Array:
    """The largest log p + G, G of (seed, position, token) alone: no draft can change it."""
    noise = gumbel_noise(jnp.asarray(draws.seeds), jnp.asarray(draws.positions), logits.shape[-1])
    scores = jnp.where(kept, _warm_logits(logits, draws.temperature) + noise, -jnp.inf)
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def _described(
    raw: Array, changed: Array, kept: Array, token_ids: Array, failed: Array, draws: Draws
) -> Sample:
    """Log-probabilities of the chosen tokens and, where wanted, of the most likely ones."""
    filtered = jnp.asarray(draws.filtered_logprobs)
    law = lax.cond(
        jnp.any(filtered),
        lambda: jnp.where(filtered[:, None], _drawn_law(changed, kept, draws), raw),
        lambda: raw,
    )
    # + 0.0: the two zeros are one tie
    top_law, top_ids = lax.cond(
        jnp.any(draws.listed),
        lambda: _largest(law + 0.0),
        lambda: (
            jnp.zeros((len(raw), MAX_TOP_LOGPROBS), jnp.float32),
            jnp.zeros((len(raw), MAX_TOP_LOGPROBS), jnp.int32),
        ),
    )
    total = jax.nn.logsumexp(law, axis=-1)
    chosen = jnp.take_along_axis(law, token_ids[:, None], axis=-1)[:, 0]
    return Sample(
        token_ids=token_ids,
        logprobs=jnp.maximum(chosen - total, LOWEST_LOGPROB),
        failed=failed,
        top_ids=top_ids,
        top_logprobs=jnp.maximum(top_law - total[:, None], LOWEST_LOGPROB),
    )


def _drawn_law(changed: Array, kept: Array, draws: Draws) -> Array:
    """The law that tokens are drawn from, as logits; at temperature 0 one point."""
    warm = jnp.where(kept, _warm_logits(changed, draws.temperature), -jnp.inf)
    best = jnp.argmax(changed, axis=-1)[:, None]
    point = jnp.where(jnp.arange(changed.shape[-1]) == best, 0.0, -jnp.inf)
    return jnp.where(draws.temperature[:, None] > 0, warm, point)


def _largest(law: Array) -> tuple[Array, Array]:
    count = min(MAX_TOP_LOGPROBS, law.shape[-1])
    values, ids = lax.top_k(law, count)
    room = ((0, 0), (0, MAX_TOP_LOGPROBS - count))
    return jnp.pad(values, room), jnp.pad(ids.astype(jnp.int32), room)


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
