"""Counts and times of an engine's steps."""

from dataclasses import dataclass


@dataclass
class PhaseStats:
    """Steps of one kind.

    Attributes:
        steps: dispatches.
        tokens: prompt tokens computed, or tokens generated.
        seconds: from the choice of the step to its result on the host.
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
