"""The last steps of an engine, for the plot of the status page, read off its growing counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic

from dsinfer_jax.server.source import StepRecord

KINDS = ("prefill", "decode")
KEPT = 120
INTERVAL = 0.05  # seconds: a look costs the engine's counts, which is more than a short step


class StepLog:
    """Looks at an engine's counts while it gives output; what they were before is no step of it.

    What a kind of step grew by between two looks becomes one record, the mean of those steps; steps
    that take longer than `INTERVAL` have a record each.

    Args:
        counts: all counts of the engine by their names of Prometheus.
        clock: in seconds.
    """

    def __init__(
        self, counts: Callable[[], Mapping[str, float]], clock: Callable[[], float] = monotonic
    ) -> None:
        self._counts, self._clock = counts, clock
        first = counts()
        self._seen = {kind: _of_kind(first, kind) for kind in KINDS}
        self._next_look = 0.0
        self._records: deque[StepRecord] = deque(maxlen=KEPT)

    def look(self) -> None:
        """There was output: see what steps made it, unless that was done a moment ago."""
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + INTERVAL
            self.add(self._counts())

    def add(self, counts: Mapping[str, float]) -> None:
        """Note the steps since the counts that were added last."""
        for kind in KINDS:
            new = _of_kind(counts, kind)
            steps, tokens, seconds = (
                after - before for after, before in zip(new, self._seen[kind])
            )
            if steps:
                self._seen[kind] = new
                self._records.append(
                    {
                        "kind": kind,
                        "steps": round(steps),
                        "tokens": round(tokens / steps, 2),
                        "seconds": seconds / steps,
                    }
                )

    def records(self) -> list[StepRecord]:
        """The last ones, oldest first."""
        return list(self._records)


def _of_kind(counts: Mapping[str, float], kind: str) -> list[float]:
    """Steps, their tokens and their seconds."""
    names = ("steps", "step_tokens", "step_seconds")
    return [counts.get(f'dsinfer_{name}_total{{kind="{kind}"}}', 0.0) for name in names]
