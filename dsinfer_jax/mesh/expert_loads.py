"""Loads of experts and ranks: the window of recent steps, and the metric (engine.md 7.4, 7.7).

Loads are tokens per expert and step, summed over the ranks of an expert group.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsinfer_jax.mesh.expert_placement import Floats, Placement

Counts = NDArray[Any]  # [steps, layers, experts] or [layers, experts], any number type


class LoadStatistics:
    """Counts of the last steps."""

    def __init__(self, layers: int, experts: int, window: int) -> None:
        self.window = window
        self._ring = np.zeros((window, layers, experts), np.int64)
        self._steps = 0

    def record(self, counts: Counts) -> None:
        """Add a step's counts [layers, experts] in the place of the oldest."""
        self._ring[self._steps % self.window] = counts
        self._steps += 1

    def loads(self) -> NDArray[np.int64]:
        """[steps, layers, experts], oldest first: the window, as far as it is filled."""
        if self._steps <= self.window:
            return self._ring[: self._steps].copy()
        return np.roll(self._ring, -(self._steps % self.window), axis=0)


def rank_loads(counts: Counts, placement: Placement) -> Floats:
    """[steps, layers, ranks] expected tokens of each rank, from [steps, layers, experts]."""
    by_layer = np.moveaxis(counts, 1, 0).astype(np.float64)
    return np.moveaxis(by_layer @ placement.shares(), 0, 1)


def moe_lb(loads: Counts) -> float:
    """Tokens of the busiest rank over those of the mean rank, both summed over steps and layers
    (engine.md 7.7); 1.0 without data.

    Args:
        loads: [..., ranks] tokens of each rank.
    """
    if loads.size == 0 or not loads.any():
        return 1.0
    return float(loads.max(axis=-1).sum() / max(1.0, loads.mean(axis=-1).sum()))
