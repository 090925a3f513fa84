"""What confidences are worth: how many drafts stayed of those with about the same estimate."""

import numpy as np

BINS = 10
_MEMORY = 1024  # judged drafts of a cell after which two thirds are forgotten
_DOUBT = 16  # drafts that it takes to believe a cell half


def judged(
    places: int, verified: np.ndarray, accepted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Drafts that were verified while all before them stayed, and those that stayed too.

    Args:
        verified, accepted: [requests] int.

    Returns:
        Two of [requests, places] bool.
    """
    place = np.arange(places)
    tried = (place < verified[:, None]) & (place <= accepted[:, None])
    return tried, place < accepted[:, None]


def tenths(confidences: np.ndarray) -> np.ndarray:
    """The bin of each confidence: int64."""
    return np.minimum(confidences * BINS, BINS - 1).astype(np.int64)


class ConfidenceTable:
    """Corrections by place and by tenth of the confidence, learned from outcomes.

    A cell with few drafts borrows from the cells of the same tenth at other places; without any, an
    estimate is taken as it is.
    """

    def __init__(self, places: int) -> None:
        self._cell = np.arange(places) * BINS
        self._judged = np.zeros(places * BINS)
        self._missing = np.zeros(places * BINS)  # stayed, less the confidences
        self._shift = np.zeros(places * BINS)

    def judge(self, confidences: np.ndarray, verified: np.ndarray, accepted: np.ndarray) -> None:
        """Learn from drafts that were verified while all before them stayed.

        Args:
            confidences: [requests, places] float32.
            verified, accepted: [requests] int.
        """
        tried, stayed = judged(confidences.shape[1], verified, accepted)
        cells, size = self._cells(confidences)[tried], len(self._cell) * BINS
        counts = np.bincount(cells, minlength=size)
        keep = 1 - np.minimum(counts / _MEMORY, 0.5)
        self._judged = self._judged * keep + counts
        missing = np.bincount(cells, (stayed - confidences)[tried], size)
        self._missing = self._missing * keep + missing
        by_bin = self._missing.reshape(-1, BINS).sum(axis=0)
        by_bin /= self._judged.reshape(-1, BINS).sum(axis=0) + _DOUBT
        borrowed = np.tile(by_bin, len(self._cell)) * _DOUBT
        self._shift = (self._missing + borrowed) / (self._judged + _DOUBT)

    def corrected(self, confidences: np.ndarray) -> np.ndarray:
        """Confidences as outcomes would have them: [requests, places] float64; 0 stays 0."""
        shifted = np.clip(confidences + self._shift[self._cells(confidences)], 0.0, 1.0)
        return np.where(confidences > 0, shifted, 0.0)

    def _cells(self, confidences: np.ndarray) -> np.ndarray:
        return self._cell + tenths(confidences)
