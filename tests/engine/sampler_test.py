"""The sampler against a float64 reference, its ties, its isolation of broken rows."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_sampler import law
from sampler_support import assert_follows, chosen, row_draws, sampled

from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampler import _high_product, kept_tokens, masses
from dsinfer_jax.engine.sampling_params import SamplingParams

ROWS, VOCAB = 8, 64


@jax.jit
def kept(logits: Any, draws: Any) -> Any:
    return kept_tokens(logits, masses(logits, draws.temperature), draws)


GREEDY = SamplingParams(temperature=0)


def test_temperature_zero_takes_the_lowest_id_among_the_largest() -> None:
    logits = np.zeros((ROWS, VOCAB), np.float32)
    logits[0, [9, 5, 40]] = 3.0
    logits[1, [7, 3]] = [-0.0, 0.0]
    logits[1, [0, 1, 2, 4, 5, 6]] = -1.0
    logits[2] = -7.0
    tokens = chosen(logits, [(GREEDY, 1, position) for position in range(ROWS)])
    assert tokens[:3].tolist() == [5, 3, 0]


def test_greedy_and_drawn_rows_share_a_batch() -> None:
    logits = np.random.default_rng(0).normal(size=(ROWS, VOCAB)).astype(np.float32)
    hot = SamplingParams(temperature=5.0)
    rows = [(hot if row % 2 else GREEDY, row, 10 + row) for row in range(ROWS)]
    tokens = chosen(logits, rows)
    assert tokens[::2].tolist() == logits[::2].argmax(-1).tolist()
    assert tokens[1::2].tolist() != logits[1::2].argmax(-1).tolist()


FILTERS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7, top_k=7),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=0.9, top_p=0.7, top_k=12),
    SamplingParams(temperature=1.3, top_p=0.95, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.01),
    SamplingParams(temperature=1.0, top_k=1),
]


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_draws_follow_the_law(params: SamplingParams, coupled: bool) -> None:
    row = np.random.default_rng(3).normal(size=VOCAB).astype(np.float32) * 1.5
    row[20:24] = row[20]  # ties
    draws, batch = 40_000, 4_000
    counts = np.zeros(VOCAB, np.int64)
    for start in range(0, draws, batch):
        logits = np.tile(row, (batch, 1))
        rows = [(params, 1234, start + position) for position in range(batch)]
        counts += np.bincount(chosen(logits, rows, coupled), minlength=VOCAB)
    assert_follows(counts, law(row, params))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(-6, 6), min_size=VOCAB, max_size=VOCAB),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 63, 64, 1000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.123, 1e-6]),
    min_p=st.sampled_from([0.0, 0.11, 0.0123, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
)
def test_filters_keep_what_sorting_keeps(
    values: list[int], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    """With many ties. Masses within 2^-22 of the limit may fall on either side."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = np.array(values, np.float32) / 2
    logits = np.tile(row, (ROWS, 1))
    mask = np.asarray(kept(logits, row_draws([(params, 0, 0)] * ROWS, ROWS)))
    assert (mask == mask[0]).all()
    margin = 0.0 if top_p == 1 else 2**-22
    low, high = (
        law(row, replace(params, top_p=limit)) > 0 for limit in (top_p - margin, top_p + margin)
    )
    assert (low <= mask[0]).all()
    assert (mask[0] <= high).all()


def test_the_token_that_crosses_top_p_is_kept_and_ties_go_by_id() -> None:
    row = np.full(VOCAB, -30.0, np.float32)
    row[[10, 3, 50, 7]] = np.log([0.25, 0.25, 0.25, 0.25]).astype(np.float32)
    logits = np.tile(row, (ROWS, 1))
    params = SamplingParams(temperature=1.0, top_p=0.4)
    mask = np.asarray(kept(logits, row_draws([(params, 0, 0)] * ROWS, ROWS)))[0]
    assert np.flatnonzero(mask).tolist() == [3, 7]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_broken_row_is_marked_and_alone(poison: float) -> None:
    logits = np.random.default_rng(1).normal(size=(ROWS, VOCAB)).astype(np.float32)
    rows = [(FILTERS[row], 5, 100 + row) for row in range(ROWS)]
    whole, _ = sampled(logits, row_draws(rows, ROWS))
    broken = logits.copy()
    broken[3, 17] = poison
    result, _ = sampled(broken, row_draws(rows, ROWS))
    assert np.asarray(result.failed).tolist() == [row == 3 for row in range(ROWS)]
    others = np.arange(ROWS) != 3
    for name in ("token_ids", "logprobs"):
        one, other = np.asarray(getattr(whole, name)), np.asarray(getattr(result, name))
        assert one[others].tobytes() == other[others].tobytes()


def test_logprobs_are_of_the_raw_law() -> None:
    logits = np.random.default_rng(2).normal(size=(ROWS, VOCAB)).astype(np.float32) * 3
    rows = [(SamplingParams(temperature=0.5, top_k=3), 9, row) for row in range(ROWS)]
    result, _ = sampled(logits, row_draws(rows, ROWS))
    raw = np.log([law(row, SamplingParams(temperature=1.0)) for row in logits])
    expected = raw[np.arange(ROWS), np.asarray(result.token_ids)]
    np.testing.assert_allclose(result.logprobs, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("coupled", [False, True])
def test_a_row_draws_the_same_token_in_any_company(coupled: bool) -> None:
    random = np.random.default_rng(4)
    row = random.normal(size=VOCAB).astype(np.float32)
    params = SamplingParams(temperature=1.1, top_p=0.9)
    tokens = set()
    for rows in (8, 16, 64):
        for place in (0, 3, rows - 1):
            logits = random.normal(size=(rows, VOCAB)).astype(np.float32)
            logits[place] = row
            others = [(FILTERS[other % len(FILTERS)], other, other) for other in range(rows)]
            others[place] = (params, 77, 4000)
            tokens.add(int(chosen(logits, others, coupled)[place]))
    assert len(tokens) == 1


@pytest.mark.parametrize("temperature", [1e-9, 1e-45, 1e30])
def test_extreme_temperatures_are_laws_too(temperature: float) -> None:
    logits = np.random.default_rng(6).normal(size=(ROWS, VOCAB)).astype(np.float32)
    rows = [(SamplingParams(temperature=temperature), row, row) for row in range(ROWS)]
    tokens = chosen(logits, rows)
    assert ((tokens >= 0) & (tokens < VOCAB)).all()
    if temperature < 1:
        assert tokens.tolist() == logits.argmax(-1).tolist()


def test_high_product_is_exact() -> None:
    random = np.random.default_rng(8)
    a = random.integers(0, 2**32, 4096, np.uint32)
    b = random.integers(0, 2**32, 4096, np.uint32)
    a[:4], b[:4] = [0, 2**32 - 1, 2**32 - 1, 1], [7, 2**32 - 1, 1, 2**32 - 1]
    expected = (a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)
    result = np.asarray(_high_product(jnp.asarray(a), jnp.asarray(b)))
    assert (result == expected.astype(np.uint32)).all()


def test_without_a_seed_answers_vary_and_at_temperature_zero_they_do_not() -> None:
    """P08: fifty requests over a flat law of eight tokens."""
    flat = np.zeros((50, 8), np.float32)

    def tokens(temperature: float) -> set[int]:
        params = SamplingParams(temperature=temperature)
        rows = [(params, Request(0, [], params).seed, 5) for _ in range(50)]
        return set(chosen(flat, rows).tolist())

    assert len(tokens(1.0)) >= 6
    assert tokens(0.0) == {0}
