"""Temperatures that make the confidences of drafts mean what they say (speculative.md 10).

Confidences are multiplied along a block, so a bias at every place grows to a large one at the last.
Places are fitted from left to right, each with those before it as they were fitted.
"""

from dataclasses import dataclass

import numpy as np

BINS = 15
CANDIDATES = np.logspace(-1, 1, 41)
_CLAMP = 60.0


@dataclass(frozen=True)
class Calibration:
    """What a fit has found; errors are expected calibration errors of survival by place.

    Attributes:
        temperatures: one for each place.
        before, after: with temperatures of 1, and with these.
        blocks: how many were looked at.
    """

    temperatures: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    blocks: int


def fit_temperatures(logits: np.ndarray, accepted: np.ndarray) -> Calibration:
    """Fit one temperature for each place.

    Args:
        logits: [blocks, places], of the confidences at temperature 1.
        accepted: [blocks] int, drafts that stayed when all were verified.

    Raises:
        ValueError: no blocks.
    """
    blocks, places = logits.shape
    if not blocks:
        raise ValueError("there are no blocks to fit temperatures to; run more prompts")
    survived = accepted[:, None] > np.arange(places)
    temperatures: list[float] = []
    before, after = [], []
    so_far, uncorrected = np.ones(blocks), np.ones(blocks)
    for place in range(places):
        uncorrected = uncorrected * sigmoid(logits[:, place])
        rates = so_far[:, None] * sigmoid(logits[:, place, None] / CANDIDATES)
        errors = [calibration_error(rate, survived[:, place]) for rate in rates.T]
        best = int(np.argmin(errors))
        temperatures.append(round(float(CANDIDATES[best]), 4))
        so_far = rates[:, best]
        before.append(calibration_error(uncorrected, survived[:, place]))
        after.append(errors[best])
    return Calibration(tuple(temperatures), tuple(before), tuple(after), blocks)


def calibration_error(rates: np.ndarray, happened: np.ndarray) -> float:
    """Expected calibration error: the mean distance, over 15 equal bins weighted by how many are
    in them, of the mean rate from the share that happened."""
    bins = np.minimum((rates * BINS).astype(np.int64), BINS - 1)
    excess = np.bincount(bins, rates - happened, BINS)
    return float(np.abs(excess).sum() / len(rates))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """As the confidence head computes it: clamped to 60 on both sides."""
    return 1 / (1 + np.exp(-np.clip(logits, -_CLAMP, _CLAMP)))


def logits_of(confidences: np.ndarray) -> np.ndarray:
    """The logits of float32 confidences; certain ones become the largest that float32 can tell."""
    certain = np.float64(np.finfo(np.float32).epsneg)
    inside = np.clip(confidences.astype(np.float64), certain, 1 - certain)
    return np.log(inside) - np.log1p(-inside)
