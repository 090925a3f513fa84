"""Who proposes the tokens that a decode step verifies.

A drafter runs on the device, inside every step, after the tokens of the step are known. It keeps a
state of its own for each slot, which is donated to every step. Whatever it proposes, the law of the
answer is the same (`verification.py`), and most often its bits.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from dsinfer_jax.engine.draws import Draws
from dsinfer_jax.engine.request import Request
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.company import Company
from dsinfer_jax.model.params import Params

Array = jax.Array
Leaf = jax.Array | np.ndarray

_LONGEST_MATCH = 4  # tokens before the end that are looked for; more make no better guesses
_SHORTEST_MATCH = 2


class Drafts(NamedTuple):
    """Proposed tokens of each slot.

    Attributes:
        token_ids: [slots, places] int32.
        counts: [slots] int32, how many of them count.
        laws: [slots, places, vocab] bf16 logits of the laws that they were drawn from; None: a
            proposal was certain.
        confidences: [slots, places] float32, the estimate that each stays if those before it do,
            made without looking at it; None: 1, no estimate.
    """

    token_ids: Array
    counts: Array
    laws: Array | None = None
    confidences: Array | None = None


class Written(NamedTuple):
    """Tokens that a step has added to the sequences, and where that leaves them.

    Attributes:
        token_ids: [slots, n] int32.
        positions: [slots, n] int32; -1: nothing.
        newest: [slots] int32, position of each slot's newest token.
        newest_ids: [slots] int32.
        running: [slots] bool: this step has drawn the newest token.
        draws: of each slot's next token; meaningless where not `running`.
    """

    token_ids: Array
    positions: Array
    newest: Array
    newest_ids: Array
    running: Array
    draws: Draws


class Model(NamedTuple):
    """What the step has run, for drafters that look into it."""

    params: Params
    cache: Cache
    company: Company


class Drafter(Protocol):
    """The interface.

    Attributes:
        places: most tokens that are proposed.
        draws: whether its proposals come with laws.
    """

    places: int
    draws: bool

    def empty(self, slots: int) -> Any:
        """The state of so many slots (numpy leaves, slots first)."""

    def entry(self, request: Request) -> Any:
        """The state of one slot when a request's first token is about to be drawn (numpy)."""

    def note(self, state: Any, written: Written) -> Any:
        """Take note of new tokens and propose nothing; runs inside a program."""

    def propose(self, state: Any, written: Written, model: Model) -> tuple[Any, Drafts]:
        """Take note of new tokens and propose what may follow; runs inside a program.

        Proposals of slots that are not `running` are not used.
        """


class NoDrafter:
    """Proposes nothing: a step draws one token for each slot."""

    places = 0
    draws = False

    def empty(self, slots: int) -> Any:
        return None

    def entry(self, request: Request) -> Any:
        return None

    def note(self, state: Any, written: Written) -> Any:
        return state

    def propose(self, state: Any, written: Written, model: Model) -> tuple[Any, Drafts]:
        slots = written.newest.shape[0]
        return state, Drafts(jnp.zeros((slots, 0), jnp.int32), jnp.zeros(slots, jnp.int32))


@register_dataclass
@dataclass(frozen=True)
class History:
    """All tokens of each slot's sequence."""

    token_ids: Leaf  # [slots, longest] int32, -1 where unknown


class LookupDrafter:
    """Proposes what followed the last few tokens when they occurred before.

    It needs no weights. Of all earlier places that end like the sequence does, it takes the one
    with the longest common ending, at most four tokens, and of those the latest.

    Args:
        places: tokens to propose.
        longest: most tokens of a sequence, its newest one included.
    """

    draws = False

    def __init__(self, places: int, longest: int) -> None:
        self.places = places
        self._longest = longest

    def empty(self, slots: int) -> History:
        return History(np.full((slots, self._longest), -1, np.int32))

    def entry(self, request: Request) -> History:
        tokens = np.full(self._longest, -1, np.int32)
        tokens[: request.length] = request.known_tokens(0, request.length)
        return History(tokens)

    def note(self, state: History, written: Written) -> History:
        slots = jnp.arange(written.newest.shape[0], dtype=jnp.int32)[:, None]
        places = jnp.where(written.positions >= 0, written.positions, self._longest)
        tokens = jnp.asarray(state.token_ids)
        return History(tokens.at[slots, places].set(written.token_ids, mode="drop"))

    def propose(self, state: History, written: Written, model: Model) -> tuple[History, Drafts]:
        state = self.note(state, written)
        return state, self._looked_up(jnp.asarray(state.token_ids), written.newest)

    def _looked_up(self, tokens: Array, newest: Array) -> Drafts:
        slots, longest = tokens.shape
        place = jnp.arange(longest, dtype=jnp.int32)
        alike = jnp.ones((slots, longest), bool)
        common = jnp.zeros((slots, longest), jnp.int32)  # length of the ending shared with the end
        for distance in range(_LONGEST_MATCH):
            wanted = jnp.take_along_axis(tokens, jnp.maximum(newest - distance, 0)[:, None], axis=1)
            there = jnp.roll(tokens, distance, axis=1)
            alike &= (there == wanted) & (place >= distance) & (newest >= distance)[:, None]
            common += alike
        found = (common >= _SHORTEST_MATCH) & (place < newest[:, None])
        end = jnp.argmax(jnp.where(found, common * longest + place, -1), axis=1)
        following = end[:, None] + 1 + jnp.arange(self.places, dtype=jnp.int32)
        known = jnp.clip(newest - end, 0, self.places)
        return Drafts(
            jnp.take_along_axis(tokens, jnp.minimum(following, longest - 1), axis=1),
            jnp.where(jnp.any(found, axis=1), known, 0),
        )
