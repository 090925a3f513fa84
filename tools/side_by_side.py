"""Two implementations of one task, measured in one process in alternation.

Absolute figures of a machine wander; the ratio of neighbours does not. Each repeat runs both sides
for the same time, one after the other; the table shows the median ratio and its range.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """A task done by both packages; `units` of work per call.

    `clock` measures a call: wall time, or `time.process_time` for a task of one thread, which does
    not see what other programs take.
    """

    name: str
    unit: str
    units: float
    ours: Callable[[], object]
    official: Callable[[], object]
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Outcome:
    """Units per second of both sides and the ratio ours / official: median, lowest, highest."""

    name: str
    unit: str
    ours: float
    official: float
    ratio: float
    lowest: float
    highest: float

    def line(self) -> str:
        return (
            f"{self.name:<44} {self.ours:>12,.0f} {self.official:>12,.0f} {self.unit:<10} "
            f"{self.ratio:.2f} [{self.lowest:.2f}..{self.highest:.2f}]"
        )


def compare(comparison: Comparison, *, repeats: int = 5, seconds: float = 0.5) -> Outcome:
    """Run both sides `repeats` times for about `seconds` each."""
    comparison.ours()
    comparison.official()
    rates: list[tuple[float, float]] = []
    for _ in range(repeats):
        ours = _rate(comparison.ours, comparison.clock, seconds) * comparison.units
        rates.append(
            (ours, _rate(comparison.official, comparison.clock, seconds) * comparison.units)
        )
    ratios = sorted(ours / official for ours, official in rates)
    return Outcome(
        comparison.name,
        comparison.unit,
        statistics.median(ours for ours, _ in rates),
        statistics.median(official for _, official in rates),
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
    )


def report(comparisons: Iterable[Comparison], *, repeats: int, seconds: float) -> list[Outcome]:
    """Measure, print one line each and one JSON line with everything at the end."""
    print(f"{'':<44} {'ours':>12} {'official':>12} {'per second':<10} ratio [range]")
    outcomes = []
    for comparison in comparisons:
        outcomes.append(compare(comparison, repeats=repeats, seconds=seconds))
        print(outcomes[-1].line(), flush=True)
    print(json.dumps([vars(outcome) for outcome in outcomes]))
    return outcomes


def _rate(task: Callable[[], object], clock: Callable[[], float], seconds: float) -> float:
    """Calls per second."""
    gc.collect()
    calls = 0
    start = clock()
    while True:
        task()
        calls += 1
        elapsed = clock() - start
        if elapsed >= seconds:
            return calls / elapsed
