"""A drafter that knows the answers and spoils some of them."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax.engine.drafter import Drafts, History, Model, Written
from dsinfer_jax.engine.request import Request

Script = Callable[[Request], Sequence[int]]


class ScriptDrafter:
    """Proposes what a script says that follows the known tokens.

    Args:
        longest: most tokens of a sequence.
        places: tokens to propose.
        estimates: give confidences, which depend on the position alone.

    Attributes:
        answer: what a request will generate.
        spoiled: whether the draft of a position is replaced by another token.
    """

    draws = False

    def __init__(self, longest: int, places: int, estimates: bool = False) -> None:
        self.places = places
        self._longest, self._estimates = longest, estimates
        self.answer: Script = lambda request: ()
        self.spoiled: Callable[[int], bool] = lambda position: False

    def empty(self, slots: int) -> History:
        return History(np.full((slots, self._longest), -1, np.int32))

    def entry(self, request: Request) -> History:
        tokens = np.full(self._longest, -1, np.int32)
        whole = [*request.prompt_token_ids, *self.answer(request)][: self._longest]
        tokens[: len(whole)] = whole
        for position in range(len(request.prompt_token_ids), len(whole)):
            if self.spoiled(position):
                tokens[position] = (tokens[position] + 1) % 512
        return History(tokens)

    def note(self, state: History, written: Written) -> History:
        return state

    def propose(self, state: History, written: Written, model: Model) -> tuple[History, Drafts]:
        tokens = jnp.asarray(state.token_ids)
        places = written.newest[:, None] + 1 + jnp.arange(self.places)
        inside = places < self._longest
        ids = jnp.take_along_axis(tokens, jnp.minimum(places, self._longest - 1), axis=1)
        known = jnp.cumprod(inside & (ids >= 0), axis=1)
        counts = jnp.sum(known, axis=1, dtype=jnp.int32)
        confidences = _scattered(places) if self._estimates else None
        return state, Drafts(ids, counts, confidences=confidences)


def _scattered(positions: jax.Array) -> jax.Array:
    """Confidences from 0.2 to 1, without a pattern."""
    return 0.2 + 0.8 * ((positions * 7919 % 97) / 97.0).astype(jnp.float32)


def some(position: int) -> bool:
    """A third of all positions, without a pattern."""
    return position * 2654435761 % 2**32 < 2**32 // 3
