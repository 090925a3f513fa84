"""The choice between off, full and variable lengths, over invented requests and invented clocks."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from dsinfer_jax.engine.draft_lengths import split, survival
from dsinfer_jax.engine.engine_config import DecodeForm
from dsinfer_jax.engine.length_policy import Choice, LengthPolicy, Mode
from dsinfer_jax.engine.step_times import FormTime, StepTimes, measure

SLOTS, PLACES = 8, 5
FORMS = [
    DecodeForm(SLOTS, drafts=False, ragged=False),
    *(DecodeForm(SLOTS * each, drafts=True, ragged=True) for each in range(1, PLACES + 1)),
    DecodeForm(SLOTS * (PLACES + 1), drafts=True, ragged=False),
]
OFF, WHOLE = FORMS[0], FORMS[-1]
Seconds = Callable[[DecodeForm, int], float]
Estimate = Callable[[np.ndarray], np.ndarray]


@dataclass
class Invented:
    """Costs by a formula."""

    formula: Seconds
    seen: list[tuple[DecodeForm, int]] = field(default_factory=list)

    def seconds(self, form: DecodeForm, running: int) -> float:
        return self.formula(form, running)

    def observe(self, form: DecodeForm, running: int, seconds: float) -> None:
        self.seen.append((form, running))


def per_row(row: float, draft: float = 0.1) -> Seconds:
    """1 and so much for each row beyond the slots, and for the draft block."""
    return lambda form, running: 1 + row * (form.rows - SLOTS) + draft * form.drafts


@dataclass
class World:
    """Requests whose drafts stay with known probabilities.

    Attributes:
        ease: exponent of the chances; small: most drafts stay.
        estimate: from chances to confidences.
    """

    seconds: Seconds
    ease: float
    estimate: Estimate = lambda chances: chances
    costs: object = None
    lag: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        self.dice = np.random.default_rng(self.seed)
        self.policy = LengthPolicy(FORMS, SLOTS, PLACES, self.costs or Invented(self.seconds))
        self.chances = self.drawn(SLOTS)
        self.latest = np.zeros((SLOTS, PLACES), np.float32)
        self.waiting: list[tuple] = []
        self.modes: list[Mode] = []
        self.budgets: list[int] = []
        self.tokens = self.time = 0.0

    def drawn(self, count: int) -> np.ndarray:
        """Easy and hard contexts, and places that get harder."""
        context = self.dice.random((count, 1)) ** self.ease
        return np.clip(context ** (1 + 0.2 * np.arange(PLACES)), 0.001, 0.999)

    def run(self, steps: int, running: int, fresh: bool = True) -> float:
        """Throughput of so many steps of so many requests, over the better of fixed and off."""
        slots = np.arange(running)
        if fresh:
            for slot in slots.tolist():
                self.policy.begin(slot)
            self.found = np.float32(self.estimate(self.chances))
            self.latest = self.found
        before = self.tokens, self.time
        full = 0.0  # tokens of the same contexts with all drafts
        for _ in range(steps):
            full += running + np.cumprod(self.chances[slots], axis=1).sum()
            self.step(slots)
        reached = (self.tokens - before[0]) / (self.time - before[1])
        fixed = full / steps / self.seconds(WHOLE, running)
        return reached / max(fixed, running / self.seconds(OFF, running))

    def step(self, slots: np.ndarray) -> None:
        while len(self.waiting) > self.lag:
            self.read()
        limits = np.full(len(slots), PLACES)
        choice = self.policy.choose(slots, limits, self.latest)
        verified = self.verified(choice, slots)
        stays = self.dice.random((len(slots), PLACES)) < self.chances[slots]
        accepted = np.minimum(np.cumprod(stays, axis=1).sum(axis=1), verified)
        true = np.cumprod(self.chances[slots], axis=1)
        self.tokens += len(slots) + true[np.arange(PLACES) < verified[:, None]].sum()
        seconds = self.seconds(choice.form, len(slots))
        self.time += seconds
        self.modes.append(choice.mode)
        self.budgets.append(choice.budget)
        made, self.chances = self.found, self.drawn(SLOTS)
        self.found = np.float32(self.estimate(self.chances) * choice.form.drafts)
        self.waiting.append((choice, made, slots, verified, accepted, seconds, self.found))

    def verified(self, choice: Choice, slots: np.ndarray) -> np.ndarray:
        rates = survival(self.found[slots])
        if choice.form is OFF or not rates.any():
            return np.zeros(len(slots), np.int64)
        if not choice.form.ragged:
            return np.full(len(slots), PLACES)
        return split(rates, choice.budget)

    def read(self) -> None:
        choice, made, slots, verified, accepted, seconds, self.latest = self.waiting.pop(0)
        self.policy.read(choice, made, slots, verified, accepted)
        self.policy.timed(choice, seconds)

    def share(self, mode: Mode, last: int) -> float:
        return sum(one is mode for one in self.modes[-last:]) / last


ESTIMATES: dict[str, Estimate] = {
    "true": lambda chances: chances,
    "bold": lambda chances: chances**0.4,
    "timid": lambda chances: chances**2.5,
    "none": np.ones_like,
}
COSTS = {
    "flat": per_row(0.0),
    "gentle": per_row(0.01),
    "staircase": lambda form, running: 1 + 0.3 * (form.rows > 16) + 0.9 * (form.rows > 32),
    "steep": per_row(0.08),
    "dear drafts": per_row(0.02, draft=1.0),
}


def check(estimate: str, cost: str, running: int, ease: float) -> None:
    world = World(COSTS[cost], ease, ESTIMATES[estimate])
    world.run(200, running)
    assert world.run(1200, running, fresh=False) > 0.99, world.policy.mode


@pytest.mark.parametrize("running", [1, 8])
@pytest.mark.parametrize("cost", ["staircase", "steep"])
@pytest.mark.parametrize("estimate", ["bold", "none"])
def test_never_slower_than_fixed_or_off(estimate: str, cost: str, running: int) -> None:
    """By more than a percent."""
    for ease in (0.2, 4.0):
        check(estimate, cost, running, ease)


@pytest.mark.slow
@pytest.mark.parametrize("ease", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("running", [1, 3, 8])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("estimate", ESTIMATES)
def test_never_slower_whatever_it_costs(
    estimate: str, cost: str, running: int, ease: float
) -> None:
    check(estimate, cost, running, ease)


def test_variable_lengths_win_where_rows_cost() -> None:
    """Against the better of fixed and off, on a staircase with true confidences."""
    world = World(COSTS["staircase"], 1.0)
    world.run(200, 8)
    assert world.run(600, 8, fresh=False) > 1.3
    assert world.share(Mode.VARIABLE, 600) == 1


def test_without_drafts_a_change_is_noticed() -> None:
    """Drafts that never stay begin to: probes find out."""
    world = World(per_row(0.03), 20.0)
    world.run(400, 8)
    assert world.policy.mode is Mode.OFF
    assert world.share(Mode.OFF, 200) > 0.9
    world.ease = 0.1
    world.run(2500, 8, fresh=False)
    assert world.policy.mode is not Mode.OFF
    assert world.share(Mode.OFF, 200) == 0


def test_what_the_host_knows_early_changes_nothing() -> None:
    """Steps that are read at once and one step later give the same choices."""
    synchronous, asynchronous = (World(COSTS["gentle"], 1.0, lag=lag) for lag in (0, 1))
    for world in (synchronous, asynchronous):
        world.run(300, 5)
    assert synchronous.modes == asynchronous.modes
    assert synchronous.time == asynchronous.time
    assert len(set(synchronous.budgets)) > 3


def test_no_budget_comes_from_the_drafts_at_hand() -> None:
    """9.3: whatever their confidences are, the step that verifies them is the same."""
    dice = np.random.default_rng(3)
    slots, limits = np.arange(6), np.full(6, PLACES)
    policies = [LengthPolicy(FORMS, SLOTS, PLACES, Invented(COSTS["gentle"])) for _ in range(2)]
    for policy in policies:
        for slot in slots.tolist():
            policy.begin(slot)
    made = dice.random((SLOTS, PLACES), np.float32)
    for _ in range(60):
        unknown = dice.random((SLOTS, PLACES), np.float32)  # what one of them is shown too early
        choices = [
            policies[0].choose(slots, limits, made),
            policies[1].choose(slots, limits, unknown),
        ]
        assert choices[0] == choices[1]
        verified = dice.integers(0, PLACES + 1, 6)
        accepted = np.minimum(dice.integers(0, PLACES + 1, 6), verified)
        for policy, choice in zip(policies, choices):
            policy.read(choice, made, slots, verified, accepted)
        made = dice.random((SLOTS, PLACES), np.float32)


def test_new_requests_count_as_sure_and_those_without_drafts_as_none() -> None:
    policy = LengthPolicy(FORMS, SLOTS, PLACES, Invented(COSTS["staircase"]))
    policy.mode = Mode.VARIABLE
    slots, none = np.arange(2), np.zeros((SLOTS, PLACES), np.float32)
    policy.begin(0)
    first = policy.choose(slots, np.full(2, PLACES), none)
    assert (first.budget, first.form.rows, first.finds_drafts) == (PLACES, 8, False)
    policy = LengthPolicy(FORMS, SLOTS, PLACES, Invented(COSTS["staircase"]))
    first = policy.choose(slots, np.full(2, PLACES), none)
    assert (first.budget, first.form.rows) == (0, 8)
    assert policy.choose(slots, np.array([PLACES, 2]), none).budget == PLACES + 2


class FakeClock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_programs_are_timed_without_the_fastest_and_the_slowest_run() -> None:
    clock, runs = FakeClock(), []

    def run(form: DecodeForm, running: int) -> None:
        runs.append((form, running))
        extra = [50.0, 0.0, 9.0, 0.5, 0.25, 0.75][len(runs) % 6 - 1]
        clock.now += form.rows + running + extra

    times = measure(FORMS[:2], SLOTS, run, clock)
    assert len(runs) == 2 * 2 * 6  # each alone and in company, once to warm up
    middle = (0.75 + 0.5 + 0.25) / 3
    assert times[OFF] == FormTime(8 + 1 + middle, 8 + 8 + middle, SLOTS)
    assert times[OFF].seconds(1) == 9.5
    assert times[OFF].seconds(8) == 16.5
    assert times[OFF].seconds(4) == pytest.approx(12.5)


def test_steps_correct_the_measurement() -> None:
    times = StepTimes({form: FormTime(1.0, 1.0, SLOTS) for form in FORMS})
    for seconds in (1.8, 1.7, 9.0, 1.8):
        times.observe(OFF, 8, seconds)
    assert times.seconds(OFF, 8) == 1.0  # too few
    times.observe(OFF, 8, 1.8)
    assert times.seconds(OFF, 8) == pytest.approx(1.8)
    assert times.seconds(WHOLE, 8) == pytest.approx(1.0 + 48 * 0.1)  # by its rows
    for _ in range(5):
        times.observe(WHOLE, 8, 1.2)
    assert times.seconds(WHOLE, 8) == pytest.approx(1.2)


def test_a_measurement_that_is_wrong_does_not_last() -> None:
    """Drafting is measured as free and costs twice as much: steps tell."""
    formula = per_row(0.05, draft=1.0)
    wrong = {form: FormTime(1.0, 1.0, SLOTS) for form in FORMS}
    world = World(formula, 3.0, costs=StepTimes(wrong))
    world.run(300, 8)
    assert world.run(1000, 8, fresh=False) > 0.985
    assert world.share(Mode.OFF, 500) > 0.95
