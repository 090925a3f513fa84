"""A progress bar on stderr for work that takes more than a second."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

_QUIET_SECONDS = 1.0
_WIDTH = 30


class Progress:
    """Counts bytes. Silent for the first second, then one line.

    The line is rewritten in place on a terminal and repeated every ten seconds elsewhere.
    """

    def __init__(
        self,
        label: str,
        total_bytes: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._done = label, total_bytes, 0
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._interval = 0.1 if self._terminal else 10.0
        self._clock = clock
        self._start = clock()
        self._next = self._start + _QUIET_SECONDS

    def add(self, count: int) -> None:
        """Count bytes as done and show the bar when it is due."""
        self._done += count
        if self._clock() >= self._next:
            self._show()
            self._next = self._clock() + self._interval

    def close(self) -> None:
        """Show the last state, if anything was shown before."""
        if self._next > self._start + _QUIET_SECONDS:
            self._show()
            if self._terminal:
                print(file=self._stream)

    def _show(self) -> None:
        share = self._done / self._total if self._total else 1.0
        filled = round(share * _WIDTH)
        seconds = self._clock() - self._start
        rate = self._done / seconds / 1e6 if seconds else 0.0
        line = (
            f"{self._label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%} "
            f"{self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB, {rate:.0f} MB/s"
        )
        start, end = ("\r", "") if self._terminal else ("", "\n")
        print(start + line, end=end, file=self._stream, flush=True)
