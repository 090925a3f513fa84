"""Whether a decode step drafts, and how many drafts it verifies: the rule of speculative.md 9.

Three modes: *off* runs the program without drafts, *full* verifies every draft in the cheapest
program that holds them, *variable* as many as the largest throughput asks for. Each step predicts
what all three would bring. Off and full take turns where one is ahead by half a percent; variable
begins where it is two percent ahead of both and ends at half a percent; all in the mean of the last
steps, because drafts that stay are few and long runs of them fewer.

What decides is old: confidences of drafts that have been judged already, outcomes of steps before
the last one, times. Drafts that wait to be verified have no part in it, nor has the order in which
the host learns things; so the law of the output does not change (9.3, 9.5).

Confidences are corrected by what they were worth so far (`confidence_table.py`). Without drafts
nothing is learned, so a step in many drafts all the same: a *probe*, made as seldom as it takes to
cost half a percent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import numpy as np

from dsinfer_jax.engine.confidence_table import ConfidenceTable
from dsinfer_jax.engine.draft_lengths import Budget, TimeCurve, best_budget, gained, survival
from dsinfer_jax.engine.engine_config import DecodeForm
from dsinfer_jax.engine.step_times import StepCosts, draft_curve

_ENTER, _LEAVE = 1.02, 1.005  # throughput of variable lengths over the others (9.8)
_SWITCH = 1.005  # of off over full, or of full over off
_HORIZON = 512  # requests x steps in the mean
_FEWEST = 64  # requests x steps before the mean begins
_PROBE_COST = 0.005  # share of the time that probes may take
_PROBE_REQUESTS = 8  # requests x steps that a probe verifies
_SHORTEST_PAUSE, _LONGEST_PAUSE = 32, 4096  # steps between probes
_REST = 8  # of so many steps without drafts one looks whether they should come back
_REMEMBERED = 128  # confidences that stand for what drafting would bring


class Mode(StrEnum):
    """How a step treats drafts."""

    OFF = "off"
    FULL = "full"
    VARIABLE = "variable"


@dataclass(frozen=True)
class Choice:
    """One decode step.

    Attributes:
        number: decode steps up to it.
        budget: drafts that it verifies, all requests together; a program that is not ragged
            verifies all there are.
        running: requests of the step.
        finds_drafts: the decode step before it has made drafts.
        throughput: expected tokens per second.
    """

    number: int
    mode: Mode
    form: DecodeForm
    budget: int
    running: int
    finds_drafts: bool = True
    throughput: float = 0.0


@dataclass(frozen=True)
class _Judged:
    """What became of the drafts of a step."""

    number: int
    confidences: np.ndarray  # [requests, places]
    verified: np.ndarray  # [requests]
    accepted: np.ndarray  # [requests]


class LengthPolicy:
    """Chooses the program and the budget of every decode step.

    Args:
        forms: decode programs: one without drafts, one with room for all, and those between.
        slots, places: sizes of the engine.
        costs: seconds of the programs.

    Attributes:
        mode: of the next step, but for probes.
    """

    def __init__(
        self, forms: Sequence[DecodeForm], slots: int, places: int, costs: StepCosts
    ) -> None:
        self._forms, self._places, self._costs = forms, places, costs
        self._off = next(form for form in forms if not form.drafts)
        self.mode = Mode.FULL
        self._number = 0  # decode steps chosen
        self._read = 0  # the last of them whose outcome is known
        self._made = np.zeros((slots, places), np.float32)  # confidences before that step
        self._fresh = np.zeros(slots, bool)  # drafted by a prefill since the last decode step
        self._fresh_before = np.zeros(slots, bool)  # ... between the two last decode steps
        self._drafted = [False, False]  # whether the last and the one before made drafts
        self._judged: list[_Judged] = []
        self._table = ConfidenceTable(places)
        self._remembered = np.zeros((0, places), np.float32)  # confidences of judged drafts
        self._turn = 0  # where in them a step without drafts looks
        self._previous = places * slots  # the best budget for the step before
        # decaying means of full and of variable lengths, a step without drafts being 1
        self._seen = 0  # requests x steps in them
        self._begun = 0  # requests x steps altogether
        self._gains = np.ones(2)  # tokens
        self._times = np.ones(2)
        self._since = 0  # steps without drafts since the last probe
        self._probe = 0  # steps of a probe under way

    def begin(self, slot: int) -> None:
        """A request has its first drafts made, by a prefill step that was just dispatched."""
        self._fresh[slot] = True

    def choose(self, slots: np.ndarray, limits: np.ndarray, latest: np.ndarray) -> Choice:
        """The next decode step.

        Args:
            slots: [running] int, which slots run.
            limits: [running] int, most drafts of each.
            latest: [slots, places] float32, confidences after the last step that was read.
        """
        self._number += 1
        self._learn()
        running, finds = len(slots), self._drafted[0]
        off_seconds = self._costs.seconds(self._off, running)
        resting = self.mode is Mode.OFF and not self._probe
        if resting and (self._since + 1) % _REST:
            self._since += 1
            return self._chosen(self.mode, self._off, Budget(0, running / off_seconds), running)
        curve, use = draft_curve(self._costs, self._forms, running)
        confidences = self._confidences(slots, limits, latest)
        at_hand = self._best_budget(confidences, curve)
        if not finds:  # what drafting would bring
            confidences = self._usual(limits)
        all_drafts = int(limits.sum())
        gains, times = self._forecast(confidences, curve, all_drafts)
        times /= off_seconds
        self._switch(gains, times, running)

        mode, form, budget = self.mode, self._off, Budget(0, running / off_seconds)
        if mode is Mode.OFF:
            mode = self._probe_or_not(curve.step_seconds(running) / off_seconds, running)
        if mode is not Mode.OFF:
            waiting = finds or bool(self._fresh[slots].any())
            budget = at_hand
            if mode is Mode.FULL and waiting:
                budget = Budget(all_drafts, running * gains[0] / (times[0] * off_seconds))
            form = use[curve.program_rows(running + budget.drafts)]
        return self._chosen(mode, form, budget, running)

    def _chosen(self, mode: Mode, form: DecodeForm, budget: Budget, running: int) -> Choice:
        """Move on by a step."""
        finds = self._drafted[0]
        self._drafted = [form.drafts, finds]
        self._fresh, self._fresh_before = np.zeros_like(self._fresh), self._fresh
        return Choice(self._number, mode, form, budget.drafts, running, finds, budget.throughput)

    def read(
        self,
        choice: Choice,
        made: np.ndarray,
        slots: np.ndarray,
        verified: np.ndarray,
        accepted: np.ndarray,
    ) -> None:
        """Take the outcome of a decode step.

        Args:
            made: [slots, places] float32, confidences of the drafts that it found.
            slots: [n] int, those that ran for a request that goes on or ended with the step.
            verified, accepted: [n] int, drafts of these slots.
        """
        self._read, self._made = choice.number, made
        if choice.finds_drafts and len(slots):
            self._judged.append(_Judged(choice.number, made[slots], verified, accepted))

    def timed(self, choice: Choice, seconds: float) -> None:
        """Note how long a decode step took."""
        self._costs.observe(choice.form, choice.running, seconds)

    def _best_budget(self, confidences: np.ndarray, curve: TimeCurve) -> Budget:
        expected = survival(self._table.corrected(confidences))
        return best_budget(survival(confidences), len(confidences), curve, expected)

    def _forecast(
        self, confidences: np.ndarray, curve: TimeCurve, all_drafts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each request and seconds of the step: of full, and of variable lengths.

        A budget is judged by confidences that it was not chosen for: the best of many looks better
        than it is. So this one is of the step before, and these choose the next one.
        """
        running = len(confidences)
        rates, expected = survival(confidences), survival(self._table.corrected(confidences))
        drafts = np.array([all_drafts, min(self._previous, all_drafts)])
        self._previous = best_budget(rates, running, curve, expected).drafts
        tokens = [gained(rates, count, expected) for count in drafts.tolist()]
        return 1 + np.array(tokens) / running, curve.seconds_of(running + drafts)

    def _confidences(self, slots: np.ndarray, limits: np.ndarray, latest: np.ndarray) -> np.ndarray:
        """Of the drafts before those at hand: [running, places] float32.

        1 where there are drafts and nothing older (9.3), 0 where there are none.
        """
        old = self._made if self._read == self._number - 1 else latest
        confidences, fresh = old[slots], self._fresh[slots]
        unknown = fresh if self._drafted[1] else fresh | ~self._fresh_before[slots]
        confidences[unknown] = 1.0
        none = np.arange(self._places) >= limits[:, None]
        if not self._drafted[0]:
            none |= ~fresh[:, None]
        confidences[none] = 0.0
        return confidences

    def _usual(self, limits: np.ndarray) -> np.ndarray:
        """Remembered confidences in the place of drafts that were not made: [running, places]."""
        exists = np.arange(self._places) < limits[:, None]
        if not len(self._remembered):
            return exists.astype(np.float32)
        turns = (self._turn + np.arange(len(limits))) % len(self._remembered)
        self._turn += len(limits)
        return np.where(exists, self._remembered[turns], np.float32(0))

    def _learn(self) -> None:
        """Use the outcomes of steps before the last one."""
        ready = [one for one in self._judged if one.number <= self._number - 2]
        self._judged = self._judged[len(ready) :]
        for one in ready:
            self._table.judge(one.confidences, one.verified, one.accepted)
            remembered = np.concatenate([self._remembered, one.confidences])
            self._remembered = remembered[-_REMEMBERED:]

    def _switch(self, gains: np.ndarray, times: np.ndarray, running: int) -> None:
        """Add a step to the means, and change the mode if it is worth it."""
        self._begun += running
        if self._begun < _FEWEST:  # confidences are not worth much yet
            return
        self._seen = min(self._seen + running, max(_HORIZON, running))
        self._gains += (gains - self._gains) * running / self._seen
        self._times += (times - self._times) * running / self._seen
        full, best = (self._gains / self._times).tolist()
        variable = self.mode is Mode.VARIABLE
        if best > max(full, 1.0) * (_LEAVE if variable else _ENTER):
            self._enter(Mode.VARIABLE)
        elif variable:
            self._enter(Mode.FULL if full > 1 else Mode.OFF)
        elif self.mode is Mode.OFF and full > _SWITCH:
            self._enter(Mode.FULL)
        elif self.mode is Mode.FULL and full * _SWITCH < 1:
            self._enter(Mode.OFF)

    def _enter(self, mode: Mode) -> None:
        if mode is not self.mode:
            self.mode, self._probe, self._since = mode, 0, 0

    def _probe_or_not(self, drafting: float, running: int) -> Mode:
        """Full while a probe is under way, off else.

        Args:
            drafting: time of a step that drafts and verifies nothing, in units of one that does
                not draft.
        """
        if self._probe == 0:
            self._since += 1
            steps = ceil(_PROBE_REQUESTS / running)
            last = survival(self._table.corrected(self._remembered[-_PROBE_REQUESTS:]))
            hope = float(max(self._gains[0], 1 + last.sum(axis=1).mean()))  # look again soon
            lost = max(drafting - 1, 0.0) + steps * max(float(self._times[0]) - hope, 0.0)
            if self._since < min(max(lost / _PROBE_COST, _SHORTEST_PAUSE), _LONGEST_PAUSE):
                return Mode.OFF
            self._since = 0
            self._probe = 1 + steps  # the first one drafts, and has nothing to verify
        self._probe -= 1
        return Mode.FULL
