"""Variable lengths inside the engine: ragged steps, steps without drafts, limits of requests."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import draft_support
import numpy as np
import pytest
from draft_support import PLACES, Drafted
from engine_support import check_empty, run, same_answer
from sampler_support import assert_follows
from script_drafter import ScriptDrafter, some

from dsinfer_jax.engine.engine_config import DecodeForm
from dsinfer_jax.engine.length_policy import Choice, Mode
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.programs import Programs
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.model.numerics import EXACT

DEEPEST = 8
EDGES = (1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 126, 127, 128, 129, 130, 254, 255, 256, 257)
ANSWER = 18  # tokens; the longest reach a second block


class Fixed:
    """Costs that steps do not correct: seconds of a program by its rows."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self._seconds = seconds

    def seconds(self, form: DecodeForm, running: int) -> float:
        return self._seconds[form.rows]

    def observe(self, form: DecodeForm, running: int, seconds: float) -> None:
        pass


class Dice:
    """Any program with any budget: a choice that depends on nothing."""

    def __init__(self, engine: LLMEngine, seed: int) -> None:
        self._forms, self._dice = engine.sizes.decode_forms, random.Random(seed)
        self.used: Counter[DecodeForm] = Counter()

    def begin(self, slot: int) -> None:
        pass

    def choose(self, slots: np.ndarray, limits: np.ndarray, latest: np.ndarray) -> Choice:
        form = self._dice.choice(self._forms)
        self.used[form] += 1
        budget = self._dice.randint(0, max(form.rows - len(slots), 0))
        return Choice(0, Mode.VARIABLE, form, budget, len(slots))

    def read(self, *outcome: Any) -> None:
        pass

    def timed(self, choice: Choice, seconds: float) -> None:
        pass


def diced(engine: LLMEngine, seed: int = 0) -> tuple[LLMEngine, Dice]:
    dice = Dice(engine, seed)
    engine._lengths = dice  # type: ignore[assignment]
    return engine, dice


requests = partial(draft_support.requests, max_tokens=30)


CHEAP = Fixed({8: 1.0, 16: 1.1, 40: 3.0})


def variable(drafted: Drafted, **options: Any) -> LLMEngine:
    return drafted.engine("dspark", draft_lengths="variable", **{"costs": CHEAP, **options})


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_any_lengths_give_the_answers_without_drafts(
    drafted: Drafted, temperature: float, asynchronous: bool
) -> None:
    """Greedy, and drawn in deterministic mode: tokens and logarithms to the last bit."""
    rules = {"deterministic": temperature > 0, "asynchronous": asynchronous}
    plain, company = requests(8, temperature), requests(8, temperature)
    run(drafted.engine("off", **rules), plain)
    engine, dice = diced(variable(drafted, **rules))
    run(engine, company)
    assert all(map(same_answer, plain, company))
    assert len(dice.used) == 3
    engine.flush()
    check_empty(engine)


def test_off_fixed_and_variable_draw_the_same_in_deterministic_mode(drafted: Drafted) -> None:
    answers = []
    for drafter, lengths in (("off", "fixed"), ("dspark", "fixed"), ("dspark", "variable")):
        engine = drafted.engine(drafter, costs=CHEAP, draft_lengths=lengths, deterministic=True)
        answers.append(requests(6, 0.8))
        run(engine, answers[-1])
    for one, other, third in zip(*answers):
        assert same_answer(one, other)
        assert same_answer(one, third)


def test_the_statistics_of_variable_steps(drafted: Drafted) -> None:
    """On a model whose drafts stay, with programs of more rows that do not pay."""
    params = drafted.successors(20.0, 100.0)
    engine = variable(drafted, params=params, costs=Fixed({8: 1.0, 16: 1.1, 40: 9.0}))
    company = requests(8, 0.0)
    for one in company:
        one.params = replace(one.params, max_tokens=80)
    run(engine, company)
    engine.flush()
    seen = engine.snapshot()
    steps = {
        (mode, rows): seen.get(
            f'dsinfer_decode_steps_by_program_total{{lengths="{mode}",rows="{rows}"}}', 0
        )
        for mode in Mode
        for rows in (8, 16, 40)
    }
    assert sum(steps.values()) == seen['dsinfer_steps_total{kind="decode"}']
    assert steps[Mode.VARIABLE, 16] > 8
    assert steps[Mode.OFF, 8] == 0
    requests_steps = seen["dsinfer_decode_request_steps_total"]
    drafts = seen["dsinfer_drafted_tokens_total"]
    assert seen["dsinfer_decode_rows_total"] == requests_steps + drafts
    accepted = seen["dsinfer_accepted_tokens_total"]
    assert accepted == drafts == sum(one.accepted_tokens for one in company) > 0
    assert seen["dsinfer_mean_accepted_length"] == pytest.approx(1 + accepted / requests_steps)
    assert seen["dsinfer_emitted_tokens_per_step"] * sum(steps.values()) == pytest.approx(
        requests_steps + accepted
    )
    judged = [value for name, value in seen.items() if "confidence_judged_total" in name]
    stayed = [value for name, value in seen.items() if "confidence_stayed_total" in name]
    assert sum(judged) == sum(stayed) == drafts
    sums = sum(value for name, value in seen.items() if "confidence_sum_total" in name)
    assert seen["dsinfer_confidence_error"] == pytest.approx((drafts - sums) / drafts)


def test_programs_are_measured_where_nobody_says_what_they_cost(drafted: Drafted) -> None:
    """And the steps of the measurement leave nothing behind."""
    plain, company = requests(3, 0.0), requests(3, 0.0)
    run(drafted.engine("off"), plain)
    engine = variable(drafted, costs=None)
    assert engine._lengths is not None
    for form in engine.sizes.decode_forms:
        assert engine._lengths._costs.seconds(form, 1) > 0
    run(engine, company)
    assert all(map(same_answer, plain, company))


def test_a_limit_is_of_one_request_alone(drafted: Drafted) -> None:
    """None, no drafts, at most two, more than there are; with fixed lengths."""
    limits = [None, 0, 2, 99]
    alone = [requests(4, 0.0) for _ in limits]
    engine = drafted.engine("dspark", drafted.successors(20.0, 100.0))
    for place, group in enumerate(alone):
        run(engine, [group[place]])
    company = [
        replace(one, params=replace(one.params, draft_tokens=limit))
        for one, limit in zip(requests(4, 0.0), limits)
    ]
    before = Counter(engine.request_stats.drafted_tokens)
    run(engine, company)
    for place, one in enumerate(company):
        assert same_answer(one, alone[place][place])
    # 29 tokens after the first: five steps of five and one of four, nine of three and one of two
    assert [one.drafted_tokens for one in company] == [23, 0, 19, 23]
    assert alone[0][0].drafted_tokens == 23
    by_place = engine.request_stats.drafted_tokens - before
    assert by_place == {1: 6 + 10 + 6, 2: 6 + 9 + 6, 3: 6 + 6, 4: 5 + 5}


@pytest.mark.parametrize("limit", [-1, 1.5, True, "2"])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"draft_tokens is .*; it must be a whole number from 0"):
        SamplingParams(draft_tokens=limit)


def test_nothing_is_drafted_after_the_end(drafted: Drafted) -> None:
    """6.6: the step that draws the end token leaves no drafts and no confidence behind."""
    end = drafted.config.eos_token_id
    engine = variable(drafted, asynchronous=False)
    params = SamplingParams(max_tokens=20, temperature=0, min_tokens=3, logit_bias={end: 100.0})
    ends, goes_on = Request(0, [5, 6, 7], params), requests(2, 0.0)[1]
    for one in (ends, goes_on):
        engine.add_request(one)
    while not ends.finished:
        slot = ends.slot
        engine.step()
    assert ends.token_ids[-1] == end
    state, other = engine._programs._state, goes_on.slot
    assert np.asarray(state.draft_counts)[[slot, other]].tolist() == [0, PLACES]
    confidences = np.asarray(state.confidences)
    assert not confidences[slot].any()
    assert confidences[other].all()


LETTERS, LENGTH = (40, 41, 42), 4


def exact_law(engine: LLMEngine, prompt: Sequence[int], params: SamplingParams) -> np.ndarray:
    """Probabilities of all strings of LENGTH letters after the prompt, by one row at a time."""
    one_token = replace(params, max_tokens=1, top_logprobs=len(LETTERS), filtered_logprobs=True)
    law, beginnings = np.ones(1), [()]
    for _ in range(LENGTH):
        rows = [Request(i, [*prompt, *begun], one_token) for i, begun in enumerate(beginnings)]
        run(engine, rows)
        logarithms = [dict(row.top_logprobs[0]) for row in rows]
        law = np.array([
            chance * np.exp(row[letter])
            for chance, row in zip(law, logarithms)
            for letter in LETTERS
        ])  # fmt: skip
        beginnings = [(*begun, letter) for begun in beginnings for letter in LETTERS]
    return law


@pytest.mark.parametrize("count", [1200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_strings_follow_the_target_whatever_is_verified(drafted: Drafted, count: int) -> None:
    """M4: three tokens in many strings, drawn under the real rule; their law by single rows."""
    bias = dict.fromkeys(LETTERS, 60.0)
    params = SamplingParams(max_tokens=7, temperature=1.0, logit_bias=bias, ignore_eos=True)
    weights = drafted.favouring(LETTERS, 60.0)
    costs = Fixed({8: 1.0, 16: 1.1, 40: 2.5})
    engine = variable(drafted, params=weights, costs=costs)
    wanted = exact_law(engine, [7, 8, 9], params)
    assert wanted.sum() == pytest.approx(1, abs=1e-5)
    strings = [Request(seed, [7, 8, 9], replace(params, seed=seed)) for seed in range(count)]
    before = Counter(engine.draft_stats.steps)
    run(engine, strings, limit=100_000)
    steps = engine.draft_stats.steps - before
    assert sum(steps[mode, rows] for mode, rows in steps if mode == "variable") > count / 8
    tried = sum(one.drafted_tokens for one in strings)
    assert 0.2 < sum(one.accepted_tokens for one in strings) / tried < 0.95
    number = {letter: place for place, letter in enumerate(LETTERS)}
    seen = np.zeros(len(LETTERS) ** LENGTH, np.int64)
    for one in strings:
        cell = 0
        for token in islice(one.token_ids, LENGTH):
            cell = cell * len(LETTERS) + number[token]
        seen[cell] += 1
    assert_follows(seen, wanted)


@pytest.fixture(scope="module")
def deep(drafted: Drafted) -> tuple[ScriptDrafter, Programs]:
    """Programs that verify up to eight scripted drafts of each request."""
    sizes = deep_sizes(drafted)
    drafter = ScriptDrafter(sizes.max_model_len + 1, DEEPEST, estimates=True)
    return drafter, Programs(drafted.params, drafted.config, EXACT, sizes, drafter=drafter)


def deep_sizes(drafted: Drafted, **changes: Any) -> Any:
    sizes = drafted.sizes("lookup", draft_tokens=DEEPEST, rollback=DEEPEST + 1)
    return replace(sizes, **changes)


def at_edges(depth: int | None = None) -> list[Request]:
    """One request for each length, by its index."""
    dice = np.random.default_rng(4)
    tokens = dice.integers(3, 512, max(EDGES)).tolist()
    params = SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True, draft_tokens=depth)
    return [Request(place, tokens[:length], params) for place, length in enumerate(EDGES)]


@pytest.mark.parametrize("lengths", ["fixed", "variable"])
def test_greedy_answers_at_every_depth_and_edge(
    drafted: Drafted, deep: tuple[ScriptDrafter, Programs], lengths: str
) -> None:
    """M1: depths 1 to 8, batches of 1 to 8, contexts around every edge."""
    drafter, programs = deep
    alone = at_edges()
    run(drafted.engine("off"), alone)
    drafter.answer = lambda request: alone[request.index].token_ids
    sizes = deep_sizes(drafted, draft_lengths=lengths)
    costs = Fixed(dict.fromkeys((8, 16, 72), 1.0))
    engine = LLMEngine(drafted.config, drafted.params, EXACT, sizes, programs=programs, costs=costs)
    if lengths == "variable":
        engine, _ = diced(engine)
    dice = random.Random(5)
    for depth in range(1, DEEPEST + 1):
        drafter.spoiled = some if depth % 2 else lambda position: False
        company = at_edges(depth)
        dice.shuffle(company)
        rest = iter(company)
        for batch in (8, 1, 2, 3, 6) if depth % 2 else (4, 5, 7, 4):
            run(engine, islice(rest, batch))
        for one in company:
            assert same_answer(one, alone[one.index]), (depth, EDGES[one.index])
        assert max(engine.request_stats.drafted_tokens) == depth
    stats = engine.request_stats
    assert 0.4 < stats.accepted_tokens.total() / stats.drafted_tokens.total() < 0.95
    assert stats.accepted_tokens[DEEPEST] > 0
    engine.flush()
    check_empty(engine)
