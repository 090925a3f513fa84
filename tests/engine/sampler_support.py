"""Rows for the sampler without an engine, and the chi-square test of its draws."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax.engine.draws import Draws, idle_draws, set_draw
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampler import Sample, sample
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.slot_state import (
    SlotState,
    count_tokens,
    empty_state,
    mask_words,
    packed_set,
    slot_entry,
)

Row = tuple[SamplingParams, int, int]  # parameters, seed, absolute position
EOS = 1


@jax.jit
def sample_compiled(logits, draws, state, masks):
    """The sample, and the state with its tokens counted, as in a step."""
    chosen = sample(logits, draws, state, masks)
    return chosen, count_tokens(state, draws, chosen.token_ids, jnp.asarray(draws.adjusted))


def row_draws(rows: Sequence[Row], size: int, coupled: bool = False) -> Draws:
    """Draws of rows whose slot is their number, of requests without a prompt."""
    draws = idle_draws(size)
    for place, (params, seed, position) in enumerate(rows):
        request = Request(place, [], params, seed=seed, slot=place, coupled=coupled)
        set_draw(draws, place, request, position)
    return draws


def row_state(
    requests: Sequence[tuple[SamplingParams, list[int], list[int]]], size: int, vocab: int
) -> SlotState:
    """The state after (parameters, prompt, output) have begun in slots 0, 1, ..."""
    state = empty_state(size, vocab)
    for slot, (params, prompt, output) in enumerate(requests):
        entry = slot_entry(Request(slot, prompt, params, token_ids=output), vocab, EOS)
        for leaf, new in zip(jax.tree.leaves(state), jax.tree.leaves(entry)):
            leaf[slot] = new
    return state


def row_masks(allowed: Sequence[Sequence[int] | None], vocab: int) -> np.ndarray:
    """Packed masks; None allows all."""
    masks = np.full((len(allowed), mask_words(vocab)), -1, np.int32)
    for place, tokens in enumerate(allowed):
        if tokens is not None:
            masks[place] = packed_set(tokens, vocab)
    return masks


def sampled(
    logits: np.ndarray,
    draws: Draws,
    state: SlotState | None = None,
    masks: np.ndarray | None = None,
) -> tuple[Sample, SlotState]:
    """One compiled call of the sampler."""
    rows, vocab = logits.shape
    if state is None:
        state = empty_state(rows, vocab)
    if masks is None:
        masks = row_masks([None] * rows, vocab)
    return sample_compiled(logits, draws, state, masks)


def chosen(logits: np.ndarray, rows: Sequence[Row], coupled: bool = False) -> np.ndarray:
    """The tokens of rows without state or masks."""
    return np.asarray(sampled(logits, row_draws(rows, len(logits), coupled))[0].token_ids)


def assert_follows(counts: np.ndarray, expected: np.ndarray) -> None:
    """Chi-square: `counts` [vocab] are draws of `expected`. By chance it fails once in a million.

    Cells that expect fewer than five draws are taken together.
    """
    draws = counts.sum()
    assert counts[expected == 0].sum() == 0, "a token that the law excludes was drawn"
    large = expected * draws >= 5
    seen = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum()) * draws
    seen, wanted = seen[wanted > 1e-9], wanted[wanted > 1e-9]
    freedom = len(seen) - 1
    if freedom == 0:
        return
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    # Wilson-Hilferty: the cube root of chi-square / freedom is nearly normal
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5 < 4.8
