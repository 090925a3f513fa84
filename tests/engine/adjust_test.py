"""Penalties, biases, least lengths, masks and reported laws, against the float64 reference."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from reference_sampler import adjusted, law
from sampler_support import (
    EOS,
    assert_follows,
    row_draws,
    row_masks,
    row_state,
    sampled,
)

from dsinfer_jax.engine.sampler import LOWEST_LOGPROB
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.slot_state import packed_set, unpacked

VOCAB = 70  # not a multiple of 32
GREEDY = SamplingParams(temperature=0)
PROMPT, OUTPUT = [3, 4, 4, 5], [5, 6, 6, 7, 60]
ADJUSTMENTS = {
    "repetition_penalty": 1.7,
    "frequency_penalty": 0.9,
    "presence_penalty": -1.1,
    "logit_bias": {0: 2.0, 6: 3.5, 69: -4.0},
    "min_tokens": 9,
    "stop_token_ids": (8, 9),
}


def logits_row(seed: int = 0) -> np.ndarray:
    row = np.random.default_rng(seed).normal(size=VOCAB).astype(np.float32) * 1.5
    row[30:34] = row[30]  # ties
    return row


def masked(row: np.ndarray, allowed: list[int]) -> np.ndarray:
    return np.where(np.isin(np.arange(VOCAB), allowed), row, -np.inf)


COMBINATIONS = list(product([-1, 6], [1.0, 0.75], [0.0, 0.06], [False, True], [False, True]))


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize(("top_k", "top_p", "min_p", "change", "mask"), COMBINATIONS)
def test_every_combination_follows_its_law(
    top_k: int, top_p: float, min_p: float, change: bool, mask: bool, coupled: bool
) -> None:
    extra = ADJUSTMENTS if change else {}
    params = SamplingParams(
        max_tokens=99, temperature=1.2, top_k=top_k, top_p=top_p, min_p=min_p, **extra
    )
    row, rows = logits_row(), 6000
    expected_row = adjusted(row, params, PROMPT, OUTPUT)
    allowed = list(range(0, VOCAB, 3)) if mask else list(range(VOCAB))
    draws = row_draws([(params, 99, position) for position in range(rows)], rows, coupled)
    draws.slots[:] = 0
    draws.first_end[:] = 2**31 - 1 if change else 0
    state = row_state([(params, PROMPT, OUTPUT)], 1, VOCAB)
    masks = row_masks([allowed if mask else None] * rows, VOCAB)
    result, _ = sampled(np.tile(row, (rows, 1)), draws, state, masks)
    counts = np.bincount(np.asarray(result.token_ids), minlength=VOCAB)
    assert_follows(counts, law(masked(expected_row, allowed), params))


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
@pytest.mark.parametrize("penalised_row", [0, 1])
def test_a_penalty_changes_its_own_row_only(name: str, penalised_row: int) -> None:
    """In either order (P05), and by the amount of the reference."""
    params = SamplingParams(temperature=0, filtered_logprobs=False, **{name: 1.5})
    plain = replace(GREEDY, top_logprobs=20)
    rows = [plain, plain]
    rows[penalised_row] = replace(params, temperature=1.0, filtered_logprobs=True, top_logprobs=20)
    logits = np.tile(logits_row(), (2, 1))
    state = row_state([(chosen, PROMPT, OUTPUT) for chosen in rows], 2, VOCAB)
    draws = row_draws([(chosen, 5, 50) for chosen in rows], 2)
    result, _ = sampled(logits, draws, state)
    for place, chosen in enumerate(rows):
        expected = np.log(
            law(adjusted(logits[place], chosen, PROMPT, OUTPUT), replace(chosen, temperature=1.0))
        )
        best = np.argsort(-expected, kind="stable")[:20]
        np.testing.assert_allclose(result.top_logprobs[place], expected[best], atol=2e-5)


def test_counts_follow_the_output_step_by_step() -> None:
    """Greedy with a strong penalty: each token is chosen once before any comes twice."""
    params = SamplingParams(temperature=0, max_tokens=99, frequency_penalty=2.0)
    row = np.linspace(0, 1, VOCAB, dtype=np.float32)
    state = row_state([(params, [], [])], 1, VOCAB)
    tokens = []
    for position in range(VOCAB):
        draws = row_draws([(params, 1, position)], 1)
        result, state = sampled(row[None], draws, state)
        tokens.append(int(result.token_ids[0]))
    assert tokens == list(range(VOCAB - 1, -1, -1))


def test_a_request_that_begins_again_has_the_same_counts() -> None:
    """Preemption: the state written from the output so far equals the state that grew with it."""
    params = SamplingParams(temperature=1.0, frequency_penalty=1.0, max_tokens=99)
    state = row_state([(params, PROMPT, [])], 1, VOCAB)
    output: list[int] = []
    for position in range(12):
        result, state = sampled(
            logits_row(position)[None], row_draws([(params, 4, position)], 1), state
        )
        output.append(int(result.token_ids[0]))
    again = row_state([(params, PROMPT, output)], 1, VOCAB)
    np.testing.assert_array_equal(state.counts, again.counts)


def test_endings_are_forbidden_until_the_least_length() -> None:
    params = SamplingParams(temperature=0, max_tokens=9, min_tokens=3, stop_token_ids=[8])
    row = np.zeros(VOCAB, np.float32)
    row[[EOS, 8, 20]] = [9.0, 8.0, 7.0]
    tokens = []
    for ignore in (False, True):
        chosen = replace(params, ignore_eos=ignore)
        state = row_state([(chosen, [], [])] * 4, 4, VOCAB)
        draws = row_draws([(chosen, 1, position) for position in range(4)], 4)
        result, _ = sampled(np.tile(row, (4, 1)), draws, state)
        tokens.append(np.asarray(result.token_ids).tolist())
    assert tokens == [[20, 20, 20, EOS], [EOS] * 4]


@pytest.mark.parametrize("top_k", [0, -1, VOCAB, VOCAB + 5, 2**31 - 1])
def test_these_values_of_top_k_keep_everything(top_k: int) -> None:
    """P10; and 1 is greedy."""
    logits = np.tile(logits_row(), (500, 1))

    def tokens(value: int) -> list[int]:
        params = SamplingParams(temperature=1.4, top_k=value)
        draws = row_draws([(params, 8, position) for position in range(500)], 500)
        return np.asarray(sampled(logits, draws)[0].token_ids).tolist()

    assert tokens(top_k) == tokens(-1)
    assert set(tokens(1)) == {int(logits[0].argmax())}


def test_lists_belong_to_their_token_and_ties_go_by_id() -> None:
    """P07: greedy, the first of each list is the chosen token with its log-probability."""
    logits = np.stack([logits_row(seed) for seed in range(8)])
    logits[0], logits[1, 40:50] = 1.0, 9.0
    draws = row_draws([(replace(GREEDY, top_logprobs=5), 0, row) for row in range(8)], 8)
    result, _ = sampled(logits, draws)
    np.testing.assert_array_equal(result.top_ids[:, 0], result.token_ids)
    np.testing.assert_allclose(result.top_logprobs[:, 0], result.logprobs, atol=1e-6)
    assert np.asarray(result.top_ids[0]).tolist() == list(range(20))
    assert np.asarray(result.top_ids[1, :10]).tolist() == list(range(40, 50))


def test_the_reported_law_is_the_one_asked_for() -> None:
    params = SamplingParams(temperature=0.7, top_k=3, logit_bias={5: 4.0}, top_logprobs=4)
    rows = [
        params,
        replace(params, filtered_logprobs=True),
        replace(GREEDY, filtered_logprobs=True),
    ]
    logits = np.tile(logits_row(2), (3, 1))
    state = row_state([(chosen, [], []) for chosen in rows], 3, VOCAB)
    draws = row_draws([(chosen, 3, 7) for chosen in rows], 3)
    result, _ = sampled(logits, draws, state)
    raw = np.log(law(logits[0], SamplingParams()))
    tokens = np.asarray(result.token_ids)
    assert result.logprobs[0] == pytest.approx(raw[tokens[0]], abs=1e-5)
    drawn = law(adjusted(logits[1], params), params)
    assert result.logprobs[1] == pytest.approx(np.log(drawn[tokens[1]]), abs=1e-5)
    assert set(np.asarray(result.top_ids[1, :3]).tolist()) == set(np.flatnonzero(drawn).tolist())
    assert result.top_logprobs[1, 3] == LOWEST_LOGPROB
    assert result.logprobs[2] == 0.0


def test_neither_masks_nor_adjustments_touch_the_raw_law() -> None:
    params = SamplingParams(temperature=1.0, repetition_penalty=3.0, max_tokens=99, min_tokens=50)
    logits = np.tile(logits_row(6), (2, 1))
    state = row_state([(params, PROMPT, OUTPUT)] * 2, 2, VOCAB)
    masks = row_masks([[12], None], VOCAB)
    result, _ = sampled(logits, row_draws([(params, 1, 2)] * 2, 2), state, masks)
    assert int(result.token_ids[0]) == 12
    assert result.logprobs[0] == pytest.approx(
        np.log(law(logits[0], SamplingParams()))[12], abs=1e-5
    )


@pytest.mark.parametrize("coupled", [False, True])
def test_a_mask_with_one_token_leaves_that_token(coupled: bool) -> None:
    """However unlikely it is, at every temperature."""
    logits = np.tile(logits_row(), (VOCAB, 1)) * 40
    for params in (
        GREEDY,
        SamplingParams(),
        SamplingParams(temperature=0.01, top_p=0.5, min_p=0.9),
    ):
        draws = row_draws([(params, 3, place) for place in range(VOCAB)], VOCAB, coupled)
        masks = row_masks([[token] for token in range(VOCAB)], VOCAB)
        result, _ = sampled(logits, draws, masks=masks)
        assert np.asarray(result.token_ids).tolist() == list(range(VOCAB))


def test_packed_sets_are_undone() -> None:
    tokens = [0, 31, 32, 63, 64, 69]
    assert np.flatnonzero(unpacked(packed_set(tokens, VOCAB), VOCAB)).tolist() == tokens
