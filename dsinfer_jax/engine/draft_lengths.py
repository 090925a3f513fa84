"""How many drafts are worth verifying: the arithmetic of speculative.md 9, on the host.

A draft survives with the product of the confidences up to its place. The host chooses how many
drafts a step verifies, from confidences that are two steps old; which ones they are is decided on
the device, from the confidences of the drafts at hand (`decode_rows.admitted`). Neither choice
looks at a draft or at anything that was computed from it or after it, so the law of the output
stays what it is (9.5).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class TimeCurve:
    """Seconds of a whole decode step (9.2).

    Attributes:
        base: measured seconds by rows of the program.
        slope: seconds that each row of the program costs beyond that.
        sampler: seconds of what does not depend on the rows.
    """

    base: Mapping[int, float]
    slope: float = 0.0
    sampler: float = 0.0

    @property
    def most_rows(self) -> int:
        return max(self.base)

    def step_seconds(self, rows: int) -> float:
        """Of the smallest program that holds so many rows.

        Raises:
            ValueError: none does.
        """
        return float(self.seconds_of(np.array([rows]))[0])

    def program_rows(self, rows: int) -> int:
        """Rows of the smallest program that holds so many."""
        return min(size for size in self.base if size >= rows)

    def seconds_of(self, rows: np.ndarray) -> np.ndarray:
        """`step_seconds` of several row counts: float64, of the same shape."""
        sizes = np.array(sorted(self.base))
        if rows.max(initial=0) > sizes[-1]:
            raise ValueError(f"a step has {rows.max()} rows; the largest program has {sizes[-1]}")
        place = np.searchsorted(sizes, rows)
        base = np.array([self.base[size] for size in sizes.tolist()])
        return base[place] + self.slope * sizes[place] + self.sampler


class Budget(NamedTuple):
    """A choice of length.

    Attributes:
        drafts: how many to verify, all requests together.
        throughput: expected tokens per second.
    """

    drafts: int
    throughput: float


def survival(confidences: np.ndarray) -> np.ndarray:
    """Probability that a draft and all before it stay: [requests, places], in float32.

    One product after the other, so that host and device have the same bits and no later place
    exceeds an earlier one.
    """
    rates = np.array(confidences, np.float32)
    for place in range(1, rates.shape[1]):
        rates[:, place] *= rates[:, place - 1]
    return rates


def order_of(rates: np.ndarray) -> np.ndarray:
    """Flat indices of all drafts, the likeliest first, equals by request and place."""
    return np.argsort(-rates.reshape(-1), kind="stable")


def best_budget(
    rates: np.ndarray, running: int, time: TimeCurve, expected: np.ndarray | None = None
) -> Budget:
    """The number of drafts with the largest throughput, the smallest among equals (9.3).

    All numbers are tried: programs come in a few sizes, so that the throughput has several peaks.

    Args:
        rates: [requests, places], survival of each draft; 0: there is none.
        running: requests of the step.
        expected: like `rates`: what is believed of the drafts, if that is not what orders them.
    """
    values = (rates if expected is None else expected).reshape(-1)
    some = order_of(rates)[: time.most_rows - running]
    gained = np.concatenate([[0.0], values[some].astype(np.float64)])
    tokens = running + np.cumsum(gained)
    throughput = tokens / time.seconds_of(running + np.arange(len(gained)))
    best = int(np.argmax(throughput))  # the first of equals
    return Budget(best, float(throughput[best]))


def gained(rates: np.ndarray, budget: int, expected: np.ndarray) -> float:
    """Tokens that so many verified drafts should add; arguments as of `best_budget`."""
    return float(expected.reshape(-1)[order_of(rates)[:budget]].sum(dtype=np.float64))


def split(rates: np.ndarray, budget: int) -> np.ndarray:
    """Drafts of each request that the budget admits, the likeliest first (9.4): [requests] int.

    The twin of `decode_rows.admitted`.
    """
    requests, places = rates.shape
    admitted = order_of(rates)[:budget] // places
    return np.bincount(admitted, minlength=requests)
