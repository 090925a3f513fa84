"""Comparisons, one printed line per group of tensors, and the count at the end."""

from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

RELATIVE_TOLERANCE = 5e-5  # float32 sets: relative L2 per tensor
LOGITS_TOLERANCE = 5e-4  # float32 sets: absolute, on logits
ROW_MEDIAN_TOLERANCE, ROW_TAIL_TOLERANCE = 5e-3, 5e-2  # rounded sets: relative L2 per row
UNDECIDED_GAP = 1e-5  # choices closer than this may fall either way; an exact tie may not


@dataclass
class Group:
    """The worst comparison of one tensor group."""

    worst: float = 0.0
    tolerance: float = 0.0
    unit: str = ""
    where: str = ""
    comparisons: int = 0


@dataclass
class Report:
    """Collects comparisons; the worst of each group decides it."""

    groups: dict[str, Group] = field(default_factory=dict)

    def add(self, group: str, error: float, tolerance: float, unit: str, where: str) -> None:
        entry = self.groups.setdefault(group, Group(tolerance=tolerance, unit=unit))
        entry.comparisons += 1
        worse = not error <= entry.worst  # a NaN is worse than anything
        if worse and not np.isnan(entry.worst):
            entry.worst, entry.where = error, where

    def exact(self, group: str, got: np.ndarray, want: np.ndarray, where: str = "") -> None:
        """Every element equal; the error is the share of unequal ones."""
        same_shape = got.shape == want.shape
        error = float(np.mean(got != want)) if same_shape else 1.0
        self.add(group, error, 0.0, "unequal", where)

    def relative(
        self,
        group: str,
        got: np.ndarray,
        want: np.ndarray,
        where: str = "",
        tolerance: float = RELATIVE_TOLERANCE,
    ) -> None:
        """Relative L2 over the whole tensor; infinities must stand at the same places."""
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        finite = np.isfinite(want)
        if got.shape != want.shape or not np.array_equal(np.isfinite(got), finite):
            error = float("inf")
        else:
            difference = np.linalg.norm(got[finite] - want[finite])
            error = float(difference / max(np.linalg.norm(want[finite]), 1e-30))
        self.add(group, error, tolerance, "relative", where)

    def absolute(
        self, group: str, got: np.ndarray, want: np.ndarray, where: str, tolerance: float
    ) -> None:
        error = float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64)), initial=0.0))
        self.add(group, error, tolerance, "absolute", where)

    def rows(self, group: str, got: np.ndarray, want: np.ndarray, where: str = "") -> None:
        """Relative L2 of each row: the median, and the row that 95 % stay below."""
        got = got.reshape(len(got), -1).astype(np.float64)
        want = want.reshape(len(want), -1).astype(np.float64)
        norms = np.maximum(np.linalg.norm(want, axis=1), 1e-30)
        errors = np.linalg.norm(got - want, axis=1) / norms
        median, tail = float(np.median(errors)), float(np.quantile(errors, 0.95))
        self.add(f"{group} (median row)", median, ROW_MEDIAN_TOLERANCE, "relative", where)
        self.add(f"{group} (95 % of rows)", tail, ROW_TAIL_TOLERANCE, "relative", where)

    def choices(
        self,
        group: str,
        got: np.ndarray,
        want: np.ndarray,
        gap: np.ndarray | None,
        where: str = "",
        tolerance: float = 0.0,
    ) -> None:
        """Chosen ids per row, on rows whose choice is decided. The error is the share of other
        rows."""
        decided = np.ones(len(want), bool)
        if gap is not None:
            decided = (gap > UNDECIDED_GAP) | (gap == 0)
        unequal = np.any(got != want, axis=-1) & decided
        self.add(group, float(np.mean(unequal)), tolerance, "rows unequal", where)

    def print(self, stream: TextIO) -> bool:
        """Print every group and the count; True when all passed."""
        failed = 0
        for name, group in self.groups.items():
            passed = group.worst <= group.tolerance
            failed += not passed
            where = f"  at {group.where}" if group.where and group.worst > 0 else ""
            print(
                f"{'pass' if passed else 'FAIL'}  {name:<58} worst {group.worst:.2e}  tolerance "
                f"{group.tolerance:.0e}  {group.unit}, {group.comparisons} compared{where}",
                file=stream,
            )
        print(f"{len(self.groups) - failed} passed, {failed} failed", file=stream)
        return failed == 0
