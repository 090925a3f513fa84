"""Counts and times of an engine, of its steps and of its requests, and one snapshot of them all."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsinfer_jax.engine.request import FinishReason, Request

if TYPE_CHECKING:  # the server's mock counts without it
    import numpy as np

_PREFIX = "dsinfer_"
# Upper ends of the histograms' buckets in seconds; one more has no end.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


@dataclass
class PhaseStats:
    """Steps of one kind.

    Attributes:
        steps: dispatches.
        tokens: prompt tokens computed, or tokens drawn.
        seconds: of the calls of `step` that chose one. With asynchronous steps such a call also
            waits for the step before.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class MemoryStats:
    """Bytes on the devices: weights, cache, and the largest temporaries of a program."""

    weights: int
    cache: int
    temporaries: int


class Histogram:
    """Counts of durations, in the form that Prometheus reads."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def entries(self, name: str) -> dict[str, float]:
        """`_bucket` entries that count everything up to their end, `_sum` and `_count`."""
        entries: dict[str, float] = {}
        total = 0
        for end, count in zip((*_SECONDS, "+Inf"), self._counts):
            total += count
            entries[f'{name}_bucket{{le="{end}"}}'] = total
        return {**entries, f"{name}_sum": self.sum, f"{name}_count": total}


@dataclass
class ExpertStats:
    """How evenly rows choose experts.

    Attributes:
        pairs: of rows and experts, all layers together.
        busiest, mean: pairs of the busiest expert of each layer and step, and of the mean one, all
            added up.
    """

    pairs: int = 0
    busiest: int = 0
    mean: float = 0.0

    def add(self, loads: "np.ndarray") -> None:
        """Count a step. loads [layers, experts]."""
        pairs = int(loads.sum())
        self.pairs += pairs
        self.busiest += int(loads.max(axis=1).sum())
        self.mean += pairs / loads.shape[1]

    @property
    def balance(self) -> float:
        """Mean over busiest: 1 when all experts have as many rows (engine.md 7.7, its inverse).

        0 before the first row.
        """
        return self.mean / self.busiest if self.busiest else 0.0

    def entries(self) -> dict[str, float]:
        return {
            f"{_PREFIX}expert_pairs_total": self.pairs,
            f"{_PREFIX}expert_balance": self.balance,
        }


@dataclass
class RequestStats:
    """What requests went through, counted when it happens.

    Attributes:
        queue: from arrival to the first admission.
        first_token: from arrival to the first token on the host.
        inter_token: mean time between the tokens of a request with two or more.
        whole: from arrival to the end.
        finished: by reason.
        prompt_tokens: known tokens of admitted requests, each time they are admitted.
        cached_tokens: of those, how many the prefix cache had.
        generated_tokens: taken from the device.
        drafted_tokens, accepted_tokens: verified, and of those the ones that stayed, by place: the
            first draft of a step, the second, ...
    """

    queue: Histogram = field(default_factory=Histogram)
    first_token: Histogram = field(default_factory=Histogram)
    inter_token: Histogram = field(default_factory=Histogram)
    whole: Histogram = field(default_factory=Histogram)
    finished: Counter[FinishReason] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: Counter[int] = field(default_factory=Counter)
    accepted_tokens: Counter[int] = field(default_factory=Counter)

    def admitted(self, request: Request, now: float) -> None:
        self.prompt_tokens += request.target
        self.cached_tokens += request.cached_tokens
        if request.admitted_at is None:
            request.admitted_at = now
            self.queue.add(now - request.arrived_at)

    def drafts(self, request: Request, verified: int, accepted: int) -> None:
        """Count the drafts that a step has verified for a request."""
        self.drafted_tokens.update(range(1, verified + 1))
        self.accepted_tokens.update(range(1, accepted + 1))
        request.drafted_tokens += verified
        request.accepted_tokens += accepted

    def tokens(self, request: Request, count: int, now: float) -> None:
        """Count tokens that the request has just taken."""
        self.generated_tokens += count
        if request.first_token_at is None:
            request.first_token_at = now
            self.first_token.add(now - request.arrived_at)

    def end(self, request: Request, now: float) -> None:
        """Count a request that has just ended."""
        assert request.finish_reason is not None
        self.finished[request.finish_reason] += 1
        self.whole.add(now - request.arrived_at)
        tokens = len(request.token_ids)
        if request.first_token_at is not None and tokens > 1:
            self.inter_token.add((now - request.first_token_at) / (tokens - 1))

    def entries(self) -> dict[str, float]:
        """All counts by their Prometheus names."""
        return {
            **self.queue.entries(f"{_PREFIX}request_queue_seconds"),
            **self.first_token.entries(f"{_PREFIX}time_to_first_token_seconds"),
            **self.inter_token.entries(f"{_PREFIX}inter_token_seconds"),
            **self.whole.entries(f"{_PREFIX}request_seconds"),
            **{
                f'{_PREFIX}requests_finished_total{{reason="{reason}"}}': self.finished[reason]
                for reason in FinishReason
            },
            f"{_PREFIX}prompt_tokens_total": self.prompt_tokens,
            f"{_PREFIX}cached_tokens_total": self.cached_tokens,
            f"{_PREFIX}generated_tokens_total": self.generated_tokens,
            f"{_PREFIX}drafted_tokens_total": self.drafted_tokens.total(),
            f"{_PREFIX}accepted_tokens_total": self.accepted_tokens.total(),
            **{
                f'{_PREFIX}{name}_by_place_total{{place="{place}"}}': count
                for name, places in (
                    ("drafted_tokens", self.drafted_tokens),
                    ("accepted_tokens", self.accepted_tokens),
                )
                for place, count in sorted(places.items())
            },
        }


def phase_entries(name: str, phase: PhaseStats) -> dict[str, float]:
    """The counts of one kind of step by their Prometheus names."""
    return {
        f'{_PREFIX}steps_total{{kind="{name}"}}': phase.steps,
        f'{_PREFIX}step_tokens_total{{kind="{name}"}}': phase.tokens,
        f'{_PREFIX}step_seconds_total{{kind="{name}"}}': phase.seconds,
    }


def gauge_entries(**gauges: float) -> dict[str, float]:
    """Values of the moment by their Prometheus names."""
    return {_PREFIX + name: value for name, value in gauges.items()}
