"""Prefix hits on the device: exact replay has the bits of no cache, bounded replay is measured."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from engine_support import check_empty, engine_of, run, same_answer

from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
BASE = np.random.default_rng(5).integers(3, 512, 700).tolist()


def request(tokens: Sequence[int], index: int = 0, params: SamplingParams = GREEDY) -> Request:
    return Request(index, list(tokens), params)


def prompts() -> list[list[int]]:
    """The same beginning, cut and continued in many places."""
    cuts = (1, 127, 128, 129, 133, 135, 136, 255, 256, 257, 300, 390, 512, 650)
    return [BASE[:cut] for cut in cuts] + [[*BASE[:cut], 7, *BASE[9:50]] for cut in cuts[3:]]


def test_exact_replay_has_the_bits_of_no_cache(small_llm: LLM) -> None:
    """Law 3, E29: hits of every length, continued differently; the cache is full of them."""
    plain, cached = engine_of(small_llm, "off"), engine_of(small_llm, "exact")
    run(cached, [request(BASE[:690])])
    hits = 0
    for tokens in prompts():
        expected, found = request(tokens), request(tokens)
        run(plain, [expected])
        run(cached, [found])
        assert same_answer(found, expected), f"{len(tokens)} tokens"
        assert expected.cached_tokens == 0
        hits += found.cached_tokens > 0
    assert hits >= 18
    check_empty(cached)


def test_a_shorter_replay_would_show(small_llm: LLM) -> None:
    """The comparison above can fail: with one window of rows before a hit, bits differ."""
    plain, short = engine_of(small_llm, "off"), engine_of(small_llm, "exact")
    rules = short._scheduler.each[0].prefix._replay
    short._scheduler.each[0].prefix._replay = replace(rules, reach=7)
    run(short, [request(BASE[:690])])
    equal = []
    for cut in (260, 300, 390, 520):
        expected, found = request(BASE[:cut]), request(BASE[:cut])
        run(plain, [expected])
        run(short, [found])
        equal.append(same_answer(found, expected))
    assert not all(equal)


def test_a_conversation_reuses_prompt_and_answer(small_llm: LLM) -> None:
    """Blocks that decoding filled are as good as those of a prompt."""
    plain, cached = engine_of(small_llm, "off"), engine_of(small_llm, "exact")
    first = request(BASE[:300], params=SamplingParams(max_tokens=150, seed=3, ignore_eos=True))
    run(cached, [first])
    turn = [*BASE[:300], *first.token_ids, *BASE[300:350]]
    expected, found = request(turn), request(turn)
    run(plain, [expected])
    run(cached, [found])
    assert found.stored_tokens == 384  # the third block has 44 generated tokens
    assert same_answer(found, expected)


def test_bounded_replay_is_close_and_computes_one_block_again(small_llm: LLM) -> None:
    if not small_llm.engine.sizes.truncation.keep:
        with pytest.raises(ValueError, match="give keep_tokens"):
            engine_of(small_llm, "bounded")
        return
    plain, cached = engine_of(small_llm, "off"), engine_of(small_llm, "bounded")
    run(cached, [request(BASE[:690])])
    worst, computed = 0.0, []
    for tokens in prompts():
        if len(tokens) < 128 + 20:
            continue
        before = cached.prefill_stats.tokens
        expected, found = request(tokens), request(tokens)
        run(plain, [expected])
        run(cached, [found])
        computed.append(cached.prefill_stats.tokens - before)
        hit = (len(tokens) - 20) // 128 * 128
        hit -= 128 * (found.stored_tokens < hit)  # where the prompt leaves the common beginning
        assert (found.stored_tokens, found.cached_tokens) == (hit, hit - 128)
        assert computed[-1] == len(tokens) - hit + 128
        worst = max(worst, abs(found.logprobs[0] - expected.logprobs[0]))
    # one window of eight and six producer layers: 128 replayed rows contain all 42 that matter
    assert worst == 0.0
    assert max(computed) <= 128 + 20 + 128 + 128


def test_replayed_rows_do_not_overwrite_stored_blocks(small_llm: LLM) -> None:
    """H7: the bits of shared blocks are the same before and after a hit."""
    engine = engine_of(small_llm, "exact")
    first = request(BASE[:600])
    engine.add_request(first)
    engine.step()
    while first.rest:
        engine.step()
    blocks = first.blocks[:4]
    before = [np.asarray(leaf.codes)[:, blocks] for leaf in engine._cache.main.values()]
    run(engine, [request([*BASE[:520], 9, 9], index=1)])
    after = [np.asarray(leaf.codes)[:, blocks] for leaf in engine._cache.main.values()]
    for one, other in zip(before, after):
        np.testing.assert_array_equal(one, other)
    engine.abort_request(first)


def test_more_sessions_than_slots_keep_their_hits(small_llm: LLM) -> None:
    """E25: slots, and with them windows, come and go; hits follow the blocks alone."""
    engine = engine_of(small_llm, "exact")
    shared = BASE[:260]
    run(engine, [request(shared)])
    sessions = [request([*shared, 3 + n, 4 + n], index=n) for n in range(64)]
    run(engine, sessions)
    assert [one.stored_tokens for one in sessions] == [256] * 64
    assert all(one.cached_tokens > 0 for one in sessions)


def test_requests_of_one_call_share_what_the_first_computed(small_llm: LLM) -> None:
    outputs = small_llm.generate([[*BASE[:400], n] for n in range(3, 7)], GREEDY)
    assert [output.cached_tokens > 0 for output in outputs] == [False, True, True, True]
    assert outputs[0].why_miss is not None
    assert "never stored" in outputs[0].why_miss.detail
    assert outputs[1].why_miss is None
