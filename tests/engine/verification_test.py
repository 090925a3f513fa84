"""The law of a token does not depend on the drafter, whatever it proposes (speculative.md 6)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_sampler import law
from sampler_support import assert_follows, row_draws, row_masks, row_state

from dsinfer_jax.engine.random import Purpose
from dsinfer_jax.engine.sampler import Proposals, choose, sample
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.verification import KEPT_DTYPE, proposal_counters

VOCAB, ROWS = 6, 10_000
TARGET = np.array([1.0, 0.2, -0.5, 0.9, -2.0, 0.0], np.float32)
DRAFTERS = {
    "near": np.array([0.8, 0.4, -0.3, 0.7, -1.5, 0.0], np.float32),
    "far": np.array([-3.0, -1.0, 2.0, -2.0, 1.5, 0.3], np.float32),
    "certain": np.array([-60.0, -60.0, 60.0, -60.0, -60.0, -60.0], np.float32),
    "equal": TARGET,
}
PARAMS = {
    "plain": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(temperature=1.2, top_k=3),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
}


@jax.jit
def drawn(draft_logits, target, draws, state, masks):
    """Drafts from their law, and the sampler's tokens in their places."""
    newest = draws.positions - 1
    counters = proposal_counters(newest, jnp.int32(0))
    stored = draft_logits.astype(KEPT_DTYPE)
    drafts, _ = choose(stored.astype(jnp.float32), draws, (Purpose.DRAFT, counters))
    proposals = Proposals(drafts, stored, counters)
    return drafts, sample(target, draws, state, masks, None, proposals)


def run(
    draft: np.ndarray,
    params: SamplingParams,
    allowed: list[int] | None,
    coupled: bool = False,
    first_seed: int = 0,
):
    seeds = range(first_seed, first_seed + ROWS)
    draws = row_draws([(params, seed, 7) for seed in seeds], ROWS, coupled)
    draws = replace(draws, slots=np.zeros(ROWS, np.int32))
    masks = np.repeat(row_masks([allowed], VOCAB), ROWS, axis=0)
    both = (jnp.tile(jnp.asarray(logits), (ROWS, 1)) for logits in (draft, TARGET))
    drafts, chosen = drawn(*both, draws, row_state([], 1, VOCAB), masks)
    return np.asarray(drafts), np.asarray(chosen.token_ids)


@pytest.mark.parametrize("allowed", [None, [1, 3, 4]], ids=["free", "masked"])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_ten_thousand_tokens_follow_the_masked_target(
    name: str, params: SamplingParams, allowed: list[int] | None
) -> None:
    """S16: also where the drafter proposes what the mask forbids."""
    drafts, tokens = run(DRAFTERS[name], params, allowed)
    target = TARGET.astype(np.float64)
    if allowed is not None:
        target = np.where(np.isin(np.arange(VOCAB), allowed), target, -np.inf)
    wanted = law(target, params)
    assert_follows(np.bincount(tokens, minlength=VOCAB), wanted)
    proposed = law(DRAFTERS[name].astype(KEPT_DTYPE).astype(np.float64), params)
    best = np.minimum(wanted, proposed).sum()  # no exact rule accepts more
    assert abs((drafts == tokens).mean() - best) < 5 * np.sqrt(0.25 / ROWS)
    if name == "equal" and allowed is None:
        assert best > 0.99


def test_shared_noise_accepts_less_and_has_the_same_law() -> None:
    params = PARAMS["plain"]
    drafts, tokens = run(DRAFTERS["near"], params, None, coupled=True)
    wanted = law(TARGET.astype(np.float64), params)
    assert_follows(np.bincount(tokens, minlength=VOCAB), wanted)
    best = np.minimum(wanted, law(DRAFTERS["near"].astype(np.float64), params)).sum()
    assert 0.6 * best < (drafts == tokens).mean() < best


@pytest.mark.slow
@pytest.mark.parametrize("coupled", [False, True], ids=["exact rule", "shared noise"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_million_tokens_follow_the_target(name: str, coupled: bool) -> None:
    counts = np.zeros(VOCAB, np.int64)
    for first_seed in range(0, 1_000_000, ROWS):
        _, tokens = run(DRAFTERS[name], PARAMS["plain"], None, coupled, first_seed)
        counts += np.bincount(tokens, minlength=VOCAB)
    assert counts.sum() == 1_000_000
    assert_follows(counts, law(TARGET.astype(np.float64), PARAMS["plain"]))
