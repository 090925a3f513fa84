"""Drafts change how many steps an answer takes, and nothing else.

A drafter with a script knows the answers and spoils some of them, so that every number of drafts is
accepted somewhere.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import jax
import noise_model
import numpy as np
import pytest
from engine_support import check_empty, engine_of, run, same_answer
from random_mixes import KINDS, Answers, request, run_mix
from script_drafter import ScriptDrafter, some

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.programs import Programs
from dsinfer_jax.engine.replay import Replay
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.structured_output import StructuredOutput
from dsinfer_jax.model.numerics import EXACT

PLACES = 5


@dataclass
class Scripted:
    """Programs that verify a script's drafts, beside an engine's own."""

    llm: LLM
    drafter: ScriptDrafter
    programs: Programs

    def engine(self, prefix_cache: str = "off", grammars: object = None, **changes: object):
        old = self.llm.engine
        replay = Replay.of(prefix_cache, old.sizes.truncation, old.config)
        sizes = replace(old.sizes, draft_tokens=PLACES, replay=replay, **changes)
        return LLMEngine(
            old.config, old._params, EXACT, sizes, programs=self.programs, grammars=grammars
        )

    def play(self, answers: dict[int, list[int]], spoiled: Callable[[int], bool]) -> None:
        """Draft these answers, by the indices of requests."""
        self.drafter.answer = lambda request: answers.get(request.index, ())
        self.drafter.spoiled = spoiled


@pytest.fixture(scope="module")
def scripted(small_llm: LLM) -> Scripted:
    old = small_llm.engine
    drafter = ScriptDrafter(old.sizes.max_model_len + 1, PLACES)
    sizes = replace(old.sizes, draft_tokens=PLACES)
    programs = Programs(old._params, old.config, EXACT, sizes, drafter=drafter)
    return Scripted(small_llm, drafter, programs)


@pytest.fixture(scope="module")
def answers(small_llm: LLM) -> Answers:
    return Answers(engine_of(small_llm, "off", asynchronous=False))


RULES = [
    {"prefix_cache": cache, "asynchronous": asynchronous}
    for cache in ("off", "exact")
    for asynchronous in (False, True)
]


def play_kinds(scripted: Scripted, answers: Answers) -> None:
    """Draft by prompt and temperature: a request's index says nothing about its kind."""
    known = [answers.of(kind) for kind in range(len(KINDS))]
    by_seed = {one.seed: one.token_ids for one in known}
    scripted.drafter.answer = lambda request: by_seed.get(request.seed, ())
    scripted.drafter.spoiled = some


def check_mixes(scripted: Scripted, answers: Answers, rules: dict, seeds: range) -> None:
    play_kinds(scripted, answers)
    engine = scripted.engine(**rules)
    for seed in seeds:
        run_mix(engine, answers, seed, 14)
    stats = engine.request_stats
    assert engine._scheduler.preemptions > 0, "the pool is meant to be too small"
    assert 0.3 < stats.accepted_tokens.total() / stats.drafted_tokens.total() < 0.7


@pytest.mark.parametrize("rules", [RULES[0], RULES[-1]], ids=str)  # the slow test takes all four
def test_random_company_changes_nothing(scripted: Scripted, answers: Answers, rules: dict) -> None:
    check_mixes(scripted, answers, rules, range(2))


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_two_hundred_random_mixes(scripted: Scripted, answers: Answers, rules: dict) -> None:
    check_mixes(scripted, answers, rules, range(100, 113))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_perfect_drafts_all_stay(scripted: Scripted, answers: Answers, asynchronous: bool) -> None:
    """And the last tokens are not overshot: max_tokens cuts what is verified."""
    known = [answers.of(kind) for kind in range(len(KINDS))]
    scripted.play({kind: one.token_ids for kind, one in enumerate(known)}, lambda position: False)
    engine = scripted.engine(asynchronous=asynchronous)
    for kind, alone in enumerate(known):
        one = request(kind, kind)
        before = engine.decode_stats.steps
        run(engine, [one])
        assert same_answer(one, alone)
        after_first = len(one.token_ids) - 1
        assert (one.drafted_tokens, one.accepted_tokens) == (
            after_first - -(-after_first // (PLACES + 1)),
        ) * 2
        assert engine.decode_stats.steps - before <= -(-after_first // (PLACES + 1)) + 5
    check_empty(engine)
    stats, entries = engine.request_stats, engine.snapshot()  # E12: at every place
    assert stats.accepted_tokens == stats.drafted_tokens
    for place in range(1, PLACES + 1):
        by_place = f'_tokens_by_place_total{{place="{place}"}}'
        assert entries["dsinfer_accepted" + by_place] == entries["dsinfer_drafted" + by_place] > 0


def test_verified_rows_leave_the_state_of_single_rows(scripted: Scripted, answers: Answers) -> None:
    """E10: after a long run of perfect drafts the whole cache has the bits of plain decoding."""
    params = SamplingParams(max_tokens=560, temperature=0, ignore_eos=True)
    plain, drafted = (Request(0, [9, 8, 7, 6, 5], params) for _ in range(2))
    one = engine_of(scripted.llm, "off")
    run(one, [plain])
    scripted.play({0: plain.token_ids}, lambda position: False)
    other = scripted.engine()
    run(other, [drafted])
    assert same_answer(plain, drafted)
    assert drafted.accepted_tokens == drafted.drafted_tokens == 465
    one.flush(), other.flush()
    for leaf, same in zip(jax.tree.leaves(one._cache), jax.tree.leaves(other._cache)):
        assert np.asarray(leaf).tobytes() == np.asarray(same).tobytes()


def test_every_accepted_token_has_its_own_row(scripted: Scripted, answers: Answers) -> None:
    """P07: lists of likely tokens stay beside their tokens, whatever was accepted."""
    kind = 11
    alone = answers.of(kind)
    assert alone.params.temperature == 0
    scripted.play({0: alone.token_ids}, some)
    one = request(kind, 0)
    one.params = replace(one.params, top_logprobs=3)
    run(scripted.engine(), [one])
    assert 0 < one.accepted_tokens < one.drafted_tokens
    assert len(one.top_logprobs) == len(one.logprobs) == len(one.token_ids) == 140
    for token, logprob, top in zip(one.token_ids, one.logprobs, one.top_logprobs):
        assert top[0] == (token, logprob)


def test_penalties_count_the_drafts_before_a_row(scripted: Scripted) -> None:
    """With drafts that stay and drafts that do not, as without drafts."""
    params = SamplingParams(
        max_tokens=90, temperature=0.9, seed=4, ignore_eos=True, repetition_penalty=1.3,
        frequency_penalty=0.4, presence_penalty=0.2, min_tokens=20, logit_bias={77: 4.0},
    )  # fmt: skip
    alone, one = (Request(0, [5, 6, 7, 77, 77], params) for _ in range(2))
    run(engine_of(scripted.llm, "off"), [alone])
    scripted.play({0: alone.token_ids}, some)
    run(scripted.engine(), [one])
    assert one.accepted_tokens > 20
    assert same_answer(one, alone)


def test_deterministic_answers_do_not_depend_on_drafts(scripted: Scripted) -> None:
    """Tokens come from noise of seed, position and vocabulary id; drafts only save steps."""
    params = SamplingParams(max_tokens=80, temperature=1.1, top_p=0.95, ignore_eos=True)
    alone, one, badly = (Request(0, [5, 6, 7, 8], params) for _ in range(3))
    run(engine_of(scripted.llm, "off", deterministic=True), [alone])
    scripted.play({0: alone.token_ids}, some)
    run(scripted.engine(deterministic=True), [one])
    scripted.play({0: alone.token_ids}, lambda position: True)
    run(scripted.engine(deterministic=True), [badly])
    assert one.accepted_tokens > 20
    assert badly.accepted_tokens == 0 < badly.drafted_tokens
    assert same_answer(one, alone)
    assert same_answer(badly, alone)


def test_a_stop_token_inside_a_step_drops_what_follows(
    scripted: Scripted, answers: Answers
) -> None:
    alone = answers.of(3)
    for place in (1, 2, 3, 4, 5, 6, 7):
        end = alone.token_ids[place]
        if end in alone.token_ids[:place]:
            continue
        scripted.play({0: alone.token_ids}, lambda position: False)
        one = request(3, 0)
        one.params = replace(one.params, stop_token_ids=(end,))
        engine = scripted.engine()
        run(engine, [one])
        assert one.token_ids == alone.token_ids[: place + 1]
        engine.flush()
        check_empty(engine)


PATTERN = r"([a-e]{2}[0-9]){12,15}"


@pytest.fixture(scope="module")
def grammars() -> Iterator[object]:
    pytest.importorskip("llguidance", reason="the grammar extra is not installed")
    from dsinfer_jax.engine.grammar_compiler import compiler_for

    config, _, tokenizer = noise_model.load()
    codec = TextCodec(tokenizer, config.bos_token_id)
    compiler = compiler_for(codec, config.vocab_size, [config.eos_token_id])
    yield lambda: compiler
    compiler.close()


@pytest.mark.parametrize("trigger_place", [None, 0, 1, 2, 3, 4, 7])
def test_grammars_hold_for_every_row(
    scripted: Scripted, grammars: object, trigger_place: int | None
) -> None:
    """S08, S09, S16: the grammar starts at any place of a step, and refuses drafts at any place."""
    params = SamplingParams(max_tokens=60, temperature=1.2, seed=11, ignore_eos=True)
    free = Request(0, [7, 8, 9], replace(params, max_tokens=20))
    old = scripted.llm.engine
    trigger: tuple[int, ...] = ()
    if trigger_place is not None:
        run(engine_of(scripted.llm, "off"), [free])
        trigger = (free.token_ids[trigger_place],)
    output = StructuredOutput("regex", PATTERN, trigger)
    params = replace(params, ignore_eos=False, structured_output=output)
    alone, one = (Request(0, [7, 8, 9], params) for _ in range(2))
    plain = LLMEngine(
        old.config, old._params, EXACT, old.sizes, programs=old._programs, grammars=grammars
    )
    run(plain, [alone], limit=50_000)
    scripted.play({0: alone.token_ids}, some)
    run(scripted.engine(grammars=grammars), [one], limit=50_000)
    assert same_answer(one, alone)
    assert 0 < one.accepted_tokens < one.drafted_tokens
    config, _, tokenizer = noise_model.load()
    codec = TextCodec(tokenizer, config.bos_token_id)
    start = one.token_ids.index(trigger[0]) + 1 if trigger else 0
    text = b"".join(map(codec.token_bytes, one.token_ids[start:-1])).decode()
    assert re.fullmatch(PATTERN, text)
