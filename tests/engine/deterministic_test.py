"""Deterministic mode: the same bits alone, in company, preempted, cached, in any order."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_support import check_empty, engine_of, run, same_answer
from sampler_support import row_draws, sampled

from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.llm_engine import _check_deterministic
from dsinfer_jax.engine.random import gumbel_noise, seed_words
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams

HOT = SamplingParams(max_tokens=30, temperature=1.1, top_p=0.95, ignore_eos=True)
PENALISED = replace(HOT, frequency_penalty=0.7, repetition_penalty=1.2, min_p=0.01, top_k=40)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((seed, length)).integers(3, 512, length).tolist()


def requests(params: list[SamplingParams]) -> list[Request]:
    lengths = (110, 120, 1, 115, 125, 300, 105, 118)  # most grow into a second block
    return [
        Request(index, prompt(length), params[index % len(params)], answer=index)
        for index, length in enumerate(lengths)
    ]


def test_answers_do_not_depend_on_company_cutting_cache_or_preemption(small_llm: LLM) -> None:
    """Nine blocks for eighteen: slices are cut by neighbours, and requests are preempted."""
    kinds = [HOT, PENALISED, replace(HOT, seed=9, temperature=0.6)]
    alone = requests(kinds)
    engine = engine_of(small_llm, "off", deterministic=True, asynchronous=False)
    for one in alone:
        run(engine, [one])
    check_empty(engine)
    assert len({tuple(one.token_ids) for one in alone}) == len(alone)
    preempted = 0
    for cache, asynchronous in (("off", True), ("exact", True), ("exact", False)):
        engine = engine_of(small_llm, cache, deterministic=True, asynchronous=asynchronous)
        for turn in range(2):  # the second finds the prefixes of the first
            together = requests(kinds)
            run(engine, together if turn else together[::-1])
            assert all(map(same_answer, together, alone)), (cache, asynchronous, turn)
            preempted += sum(one.preemptions for one in together)
    assert preempted > 0


def test_requests_without_a_seed_repeat(small_llm: LLM) -> None:
    """Their seed is of prompt and answer; without the mode it is of chance."""

    def tokens(deterministic: bool, answer: int = 0, length: int = 20) -> list[int]:
        engine = engine_of(small_llm, deterministic=deterministic)
        request = Request(0, prompt(length), HOT, answer=answer)
        run(engine, [request])
        return request.token_ids

    assert tokens(True) == tokens(True)
    assert tokens(True) != tokens(True, answer=1)
    assert tokens(True) != tokens(True, length=21)
    assert tokens(False) != tokens(False)


def test_what_would_break_it_is_refused(small_llm: LLM) -> None:
    config = small_llm.engine.config
    with pytest.raises(ValueError, match=r'prefix_cache is "bounded".*must be "exact"'):
        EngineConfig.of(config, keep_tokens=20, prefix_cache="bounded", deterministic=True)

    class Elsewhere:
        platform = "gpu"

    class Leaf:
        def devices(self) -> set[Elsewhere]:
            return {Elsewhere()}

    with pytest.raises(ValueError, match="the weights are on gpu; numerics"):
        _check_deterministic({"embed": Leaf()})  # type: ignore[arg-type]


def test_noise_is_of_seed_position_and_vocabulary_id_alone() -> None:
    """Not of the row, the number of rows or the size of the vocabulary."""
    seeds = jnp.asarray(np.stack([seed_words(seed) for seed in (3, 3, 8, 2**60)]))
    positions = jnp.asarray([5, 6, 5, 5], jnp.int32)
    noise = np.asarray(gumbel_noise(seeds, positions, 300))
    assert len({row.tobytes() for row in noise}) == 4
    for row in range(4):
        alone = gumbel_noise(seeds[row : row + 1], positions[row : row + 1], 300)
        assert np.asarray(alone)[0].tobytes() == noise[row].tobytes()
    wider = np.asarray(gumbel_noise(seeds, positions, 1000))
    assert wider[:, :300].tobytes() == noise.tobytes()


def test_noise_is_standard_gumbel_and_finite() -> None:
    rows = 400
    seeds = jnp.asarray(np.stack([seed_words(seed) for seed in range(rows)]))
    noise = np.asarray(gumbel_noise(seeds, jnp.zeros(rows, jnp.int32), 1000), np.float64).ravel()
    assert np.isfinite(noise).all()
    places = np.linspace(-2, 6, 30)
    expected = np.exp(-np.exp(-places))
    seen = (noise[None] <= places[:, None]).mean(-1)
    assert np.abs(seen - expected).max() < 4 * 0.5 / len(noise) ** 0.5


def test_a_draft_that_shares_the_noise_agrees_often_and_changes_no_law() -> None:
    """The price of design.md 6: agreement of two near laws is high, though below 1 - distance."""
    rows, vocab = 4000, 64
    random = np.random.default_rng(1)
    target = random.normal(size=vocab).astype(np.float32)
    draft = (target + 0.1 * random.normal(size=vocab)).astype(np.float32)
    params = SamplingParams()
    draws = row_draws([(params, 5, position) for position in range(rows)], rows, coupled=True)
    tokens = [
        np.asarray(sampled(np.tile(row, (rows, 1)), draws)[0].token_ids) for row in (target, draft)
    ]
    laws = [np.asarray(jax.nn.softmax(row)) for row in (target, draft)]
    distance = np.abs(laws[0] - laws[1]).sum() / 2
    agreement = (tokens[0] == tokens[1]).mean()
    assert 1 - 2.2 * distance < agreement < 1 - distance + 0.02
