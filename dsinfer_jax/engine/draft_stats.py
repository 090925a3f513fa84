"""What decode steps verified, how many tokens they added, and how good the confidences were."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dsinfer_jax.engine.confidence_table import BINS, judged, tenths
from dsinfer_jax.engine.length_policy import Choice

_PREFIX = "dsinfer_"


@dataclass
class DraftStats:
    """Counts of decode steps with drafts.

    A confidence is judged where its draft was verified and all drafts before it stayed: by whether
    the draft stayed too. Counts are kept by tenth of the confidence, because one outcome says
    nothing about an estimate and many of nearly the same estimate do.

    Attributes:
        steps: by mode and rows of the program.
        rows: in use: newest tokens and verified drafts.
        tokens: added to the sequences.
        request_steps: requests of each step, added up.
        budget: drafts that steps were allowed to verify.
        judged, stayed, confidence: [10], of the drafts in each tenth: how many, how many of them
            stayed, and the sum of their confidences.
        throughput: tokens per second that the last step was expected to bring.
    """

    steps: Counter[tuple[str, int]] = field(default_factory=Counter)
    rows: int = 0
    tokens: int = 0
    request_steps: int = 0
    budget: int = 0
    judged: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    stayed: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    confidence: np.ndarray = field(default_factory=lambda: np.zeros(BINS))
    throughput: float = 0.0

    def add(
        self, choice: Choice, confidences: np.ndarray, verified: np.ndarray, accepted: np.ndarray
    ) -> None:
        """Count a step.

        Args:
            confidences: [requests, places] float32, of the drafts that it found.
            verified, accepted: [requests] int.
        """
        self.steps[choice.mode.value, choice.form.rows] += 1
        self.rows += int(verified.sum()) + len(verified)
        self.tokens += int(accepted.sum()) + len(accepted)
        self.request_steps += len(verified)
        self.budget += choice.budget
        self.throughput = choice.throughput
        if not verified.any():
            return
        tried, stayed = judged(confidences.shape[1], verified, accepted)
        estimates = confidences[tried]
        bins = tenths(estimates)
        self.judged += np.bincount(bins, minlength=BINS)
        self.stayed += np.bincount(bins[stayed[tried]], minlength=BINS)
        self.confidence += np.bincount(bins, estimates, BINS)

    @property
    def mean_accepted_length(self) -> float:
        """Tokens that a step adds to a request: accepted drafts and the one drawn after them."""
        return self.tokens / self.request_steps if self.request_steps else 0.0

    @property
    def confidence_error(self) -> float:
        """Mean distance between confidence and share that stayed, over the tenths."""
        judged = self.judged.sum()
        return float(np.abs(self.stayed - self.confidence).sum() / judged) if judged else 0.0

    def entries(self) -> dict[str, float]:
        """All counts by their Prometheus names (docs/engine.md)."""
        steps = sum(self.steps.values())
        by_bin = [
            (f'{{confidence="{number / BINS:.1f}"}}', number)
            for number in range(BINS)
            if self.judged[number]
        ]
        return {
            **{
                f'{_PREFIX}decode_steps_by_program_total{{lengths="{mode}",rows="{rows}"}}': count
                for (mode, rows), count in sorted(self.steps.items())
            },
            f"{_PREFIX}decode_rows_total": self.rows,
            f"{_PREFIX}decode_request_steps_total": self.request_steps,
            f"{_PREFIX}draft_budget_total": self.budget,
            f"{_PREFIX}verified_rows_per_step": self.rows / steps if steps else 0.0,
            f"{_PREFIX}emitted_tokens_per_step": self.tokens / steps if steps else 0.0,
            f"{_PREFIX}mean_accepted_length": self.mean_accepted_length,
            f"{_PREFIX}expected_tokens_per_second": self.throughput,
            f"{_PREFIX}confidence_error": self.confidence_error,
            **{
                f"{_PREFIX}{name}_total{label}": float(counts[number])
                for name, counts in (
                    ("confidence_judged", self.judged),
                    ("confidence_stayed", self.stayed),
                    ("confidence_sum", self.confidence),
                )
                for label, number in by_bin
            },
        }
