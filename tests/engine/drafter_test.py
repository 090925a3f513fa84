"""Look-up drafts against a plain search, and which drafts stay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsinfer_jax.engine.drafter import LookupDrafter, NoDrafter, Written
from dsinfer_jax.engine.draws import idle_draws
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.verification import accepted_drafts, earlier_drafts

PLACES, LONGEST, SLOTS = 4, 40, 6


def searched(tokens: list[int]) -> list[int]:
    """The longest ending of 2 to 4 tokens that occurred before; of those the latest."""
    for size in (4, 3, 2):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[len(tokens) - size :]:
                return tokens[end : end + PLACES]
    return []


NO_MODEL: Any = None


def written(token_ids: Any, positions: Any, newest: Any) -> Written:
    """Tokens as a step leaves them."""
    rows, newest = jnp.asarray(token_ids), jnp.asarray(newest)
    return Written(
        rows, jnp.asarray(positions), newest, rows[:, -1], newest >= 0, idle_draws(len(rows))
    )


def check(drafter: LookupDrafter, state: object, sequences: list[list[int]]) -> None:
    step = written(
        [tokens[-1:] for tokens in sequences],
        [[len(tokens) - 1] for tokens in sequences],
        [len(tokens) - 1 for tokens in sequences],
    )
    _, drafts = jax.jit(drafter.propose)(state, step, NO_MODEL)
    for tokens, ids, count in zip(
        sequences, np.asarray(drafts.token_ids), np.asarray(drafts.counts)
    ):
        assert ids[:count].tolist() == searched(tokens)


@pytest.mark.parametrize("alphabet", [2, 3, 9])
def test_drafts_are_what_a_search_finds(alphabet: int) -> None:
    dice = np.random.default_rng(alphabet)
    drafter = LookupDrafter(PLACES, LONGEST)
    for _ in range(40):
        lengths = dice.integers(1, LONGEST + 1, SLOTS)
        sequences = [dice.integers(0, alphabet, length).tolist() for length in lengths]
        params = SamplingParams()
        entries = [drafter.entry(Request(0, tokens[:-1], params)).token_ids for tokens in sequences]
        check(drafter, type(drafter.empty(1))(np.stack(entries)), sequences)


def test_tokens_are_noted_at_their_positions_and_nothing_else() -> None:
    drafter = LookupDrafter(2, 8)
    step = written([[7, 8, 9], [4, 5, 6]], [[3, 4, -1], [-1, -1, -1]], [4, 0])
    state, _ = jax.jit(drafter.propose)(drafter.empty(2), step, NO_MODEL)
    assert np.asarray(state.token_ids).tolist() == [
        [-1, -1, -1, 7, 8, -1, -1, -1],
        [-1] * 8,
    ]


def test_without_a_drafter_there_are_no_drafts() -> None:
    drafter = NoDrafter()
    assert drafter.places == 0
    newest = jnp.zeros(3, jnp.int32)
    _, drafts = drafter.propose(None, written(newest[:, None], newest[:, None], newest), NO_MODEL)
    assert (drafts.token_ids.shape, drafts.counts.tolist()) == ((3, 0), [0, 0, 0])


def test_drafts_stay_up_to_the_first_that_was_not_drawn() -> None:
    drafts = jnp.array([[1, 2, 3]] * 6)
    drawn = jnp.array([[1, 2, 3, 4], [1, 2, 9, 4], [9, 2, 3, 4], [1, 9, 3, 4], [1, 2, 3, 4],
                       [1, 2, 3, 4]])  # fmt: skip
    counts = jnp.array([3, 3, 3, 3, 1, 0])
    assert accepted_drafts(drawn, drafts, counts).tolist() == [3, 2, 0, 1, 1, 0]
    assert accepted_drafts(drawn[:, :1], drafts[:, :0], counts * 0).tolist() == [0] * 6


def test_a_row_counts_the_drafts_before_it() -> None:
    assert earlier_drafts(jnp.array([[5, 6]]), 99).tolist() == [[[99, 99], [5, 99], [5, 6]]]
