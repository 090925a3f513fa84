"""What a decode step costs in each program: measured at the start, corrected by steps as they run.

Every program computes all of a step, from the target's forward pass to the next drafts, so that
there is no sampler to tell from the rest (speculative.md 9.2): what a running engine takes longer
than the measurement (longer contexts, filters, the host) is one median for each program. A program
that has not run lately is corrected by what a row of the others costs more.

Rows that are not in use cost less where the experts of a row are most of its work. Each program is
therefore measured with one slot running and with as many as it holds, with a straight line between.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, median
from typing import Protocol

from dsinfer_jax.engine.draft_lengths import TimeCurve
from dsinfer_jax.engine.engine_config import DecodeForm

TIMED_RUNS = 5
_RECENT = 64  # steps of a program that its correction remembers
_MEMORY = 4096  # steps after which it forgets them
_FEWEST = 5


@dataclass(frozen=True)
class FormTime:
    """Seconds of a step with one running slot, and with `most` of them."""

    one: float
    all: float
    most: int

    def seconds(self, running: int) -> float:
        if self.most == 1:
            return self.all
        return self.one + (self.all - self.one) * (min(running, self.most) - 1) / (self.most - 1)


def measure(
    forms: Iterable[DecodeForm],
    slots: int,
    run: Callable[[DecodeForm, int], None],
    clock: Callable[[], float],
) -> dict[DecodeForm, FormTime]:
    """Time every program: one run to warm up, then five, without the fastest and the slowest.

    Args:
        run: makes one step of invented tokens with so many running slots, and waits for it.
        clock: seconds.
    """

    def seconds(form: DecodeForm, running: int) -> float:
        run(form, running)
        taken = []
        for _ in range(TIMED_RUNS):
            start = clock()
            run(form, running)
            taken.append(clock() - start)
        return mean(sorted(taken)[1:-1])

    times = {}
    for form in forms:
        most = min(slots, form.rows)
        times[form] = FormTime(seconds(form, 1), seconds(form, most), most)
    return times


class StepCosts(Protocol):
    """Seconds of a decode step, as the choice of lengths asks for them."""

    def seconds(self, form: DecodeForm, running: int) -> float:
        """Of a step in which so many slots run."""

    def observe(self, form: DecodeForm, running: int, seconds: float) -> None:
        """A step of the program took so long."""


class StepTimes:
    """Measured times with their corrections: the `StepCosts` of a running engine."""

    def __init__(self, measured: Mapping[DecodeForm, FormTime]) -> None:
        self._measured = dict(measured)
        self._steps = 0
        self._seen: dict[DecodeForm, deque[tuple[int, float]]] = {
            form: deque(maxlen=_RECENT) for form in measured
        }
        self._excess: dict[DecodeForm, float] = {}  # median of what is remembered of each

    def seconds(self, form: DecodeForm, running: int) -> float:
        base = self._measured[form].seconds(running)
        excess = self._excess.get(form)
        return base + (self._slope * form.rows if excess is None else excess)

    def observe(self, form: DecodeForm, running: int, seconds: float) -> None:
        self._steps += 1
        seen = self._seen[form]
        seen.append((self._steps, seconds - self._measured[form].seconds(running)))
        for other, past in self._seen.items():
            while past and past[0][0] < self._steps - _MEMORY:
                past.popleft()
            if len(past) < _FEWEST:
                self._excess.pop(other, None)
        if len(seen) >= _FEWEST:
            self._excess[form] = median(excess for _, excess in seen)

    @property
    def _slope(self) -> float:
        """Seconds that a row costs beyond the measurement."""
        each = [excess / form.rows for form, excess in self._excess.items()]
        return max(median(each), 0.0) if each else 0.0


def draft_curve(
    costs: StepCosts, forms: Iterable[DecodeForm], running: int
) -> tuple[TimeCurve, dict[int, DecodeForm]]:
    """Seconds of the programs with drafts by the rows that they are used for, and those programs.

    A larger program takes the place of a smaller one that is slower.
    """
    base: dict[int, float] = {}
    use: dict[int, DecodeForm] = {}
    best: DecodeForm | None = None
    fastest = float("inf")
    for form in sorted((one for one in forms if one.drafts), key=lambda one: -one.rows):
        seconds = costs.seconds(form, running)
        if seconds <= fastest:
            best, fastest = form, seconds
        assert best is not None
        base[form.rows], use[form.rows] = fastest, best
    return TimeCurve(base), use
