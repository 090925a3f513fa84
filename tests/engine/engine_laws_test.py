"""Alone = in company, asynchronous = synchronous, cache on = off, preempted or not: every token.

Requests come and are aborted at random steps of engines that differ in one rule each. Every answer,
whole or cut short by an abort, is compared with the same request run alone, one step at a time,
without a cache.
"""

from dataclasses import replace

import pytest
from engine_support import check_empty, engine_of, run
from random_mixes import Answers, request, run_mix

from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.request import Delta, FinishReason


@pytest.fixture(scope="module")
def answers(small_llm: LLM) -> Answers:
    return Answers(engine_of(small_llm, "off", asynchronous=False))


RULES = [
    {"prefix_cache": cache, "asynchronous": asynchronous}
    for cache in ("off", "exact")
    for asynchronous in (False, True)
]


@pytest.mark.parametrize("rules", [RULES[0], RULES[-1]], ids=str)  # the slow test takes all four
def test_random_company_changes_nothing(small_llm: LLM, answers: Answers, rules: dict) -> None:
    engine = engine_of(small_llm, **rules)
    for seed in range(2):
        run_mix(engine, answers, seed, 14)
    assert engine._scheduler.preemptions > 0, "the pool is meant to be too small"


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_two_hundred_random_mixes(small_llm: LLM, answers: Answers, rules: dict) -> None:
    engine = engine_of(small_llm, **rules)
    for seed in range(100, 113):  # sixteen engines with those of speculation_test.py
        run_mix(engine, answers, seed, 20)


def test_a_request_that_ended_wastes_one_row_and_nobody_sees_it(small_llm: LLM) -> None:
    """The end token is found a step late: its request's next token is dropped."""
    engine = engine_of(small_llm, "off")
    (probe,) = [request(2, 0)]
    run(engine, [probe])
    end = probe.token_ids[4]
    engine.config = replace(engine.config, eos_token_id=end)
    one = request(2, 0)
    one.params = replace(one.params, ignore_eos=False)
    before = engine.decode_stats.tokens
    run(engine, [one])
    assert one.token_ids == probe.token_ids[: probe.token_ids.index(end) + 1]
    assert one.finish_reason is FinishReason.STOP
    engine.step()
    rows = engine.decode_stats.tokens - before
    assert rows == len(one.token_ids)  # the first token is the prompt's; one row was wasted
    check_empty(engine)


def test_tokens_come_one_step_late_and_flush_brings_the_last(small_llm: LLM) -> None:
    engine = engine_of(small_llm, "off")
    one = request(0, 0)
    engine.add_request(one)
    assert engine.step() == []
    (delta,) = engine.step()
    assert isinstance(delta, Delta)
    assert len(one.token_ids) == 1
    (delta,) = engine.flush()
    assert delta.token_ids == one.token_ids[1:]
    assert engine.flush() == []
    engine.abort_request(one)
    assert not engine.has_unfinished_requests()


def test_a_deadline_fails_one_request(small_llm: LLM) -> None:
    engine = engine_of(small_llm)
    late, other = request(0, 0), request(0, 1)
    late.deadline = 0.0
    engine.add_request(other)
    engine.add_request(late)
    (delta,) = engine.step()
    assert (delta.index, delta.finish_reason) == (0, "deadline_exceeded")
    assert "deadline passed" in (delta.error or "")
    while engine.has_unfinished_requests():
        engine.step()
    assert len(other.token_ids) == 30
    check_empty(engine)
