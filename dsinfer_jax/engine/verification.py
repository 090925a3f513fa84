"""Which drafted tokens stay (speculative.md 6).

The rows of a request hold its newest token and the drafts after it. The sampler draws a token from
the law of each row, with the words that belong to the token's position, and a draft is accepted if
it is the token that was drawn in its place. So the output is what it would be without drafts, token
for token, whatever was drafted.

For a drafter that proposes one certain token nothing is lost: a draft x stays with probability
p(x), which is as often as any exact rule can accept it.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


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
