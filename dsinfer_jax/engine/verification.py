"""Which drafted tokens stay (speculative.md 6).

The rows of a request hold its newest token and the drafts after it. The sampler draws a token from
the law of each row, and a draft is accepted if it is the token that was drawn in its place. What
the draw has to do with the draft depends on the row:

* Greedy rows, coupled rows (deterministic mode) and drafts without a law: nothing, or noise that
  both share. The output is what it would be without drafts, token for token. A drafter that
  proposes one certain token x loses nothing by it: x stays with probability p(x).
* Other rows: the draw takes the draft with probability min(1, p / g) and otherwise draws from what
  is left of p. The law of the output is p, and drafts stay as often as any exact rule allows.
"""

import jax
import jax.numpy as jnp

Array = jax.Array

KEPT_DTYPE = jnp.bfloat16  # of the logits of a draft's law, between two steps
_MOST_PLACES = 8


def proposal_counters(newest: Array, place: Array) -> Array:
    """Counters of the words that draw and judge the draft at a place: int32.

    Of the newest token's position and the place, so that no word is used twice for one purpose,
    not even for a position that is drafted again (speculative.md 6.5).
    """
    return newest * _MOST_PLACES + place


def accepted_drafts(drawn: Array, drafts: Array, counts: Array) -> Array:
    """How many first drafts of each slot stay: [slots] int32.

    Args:
        drawn: [slots, places + 1] int32, the sampler's tokens; row j follows draft j.
        drafts: [slots, places] int32.
        counts: [slots] int32, drafts that were verified.
    """
    verified = jnp.arange(drafts.shape[1], dtype=jnp.int32) < counts[:, None]
    agrees = (drawn[:, :-1] == drafts) & verified
    return jnp.sum(jnp.cumprod(agrees.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


def earlier_drafts(drafts: Array, unused: int) -> Array:
    """The drafts before each row, which its penalties count: [slots, places + 1, places] int32.

    Args:
        unused: id in the places of later drafts.
    """
    places = drafts.shape[1]
    before = jnp.arange(places)[None, :] < jnp.arange(places + 1)[:, None]
    return jnp.where(before, drafts[:, None, :], unused)
