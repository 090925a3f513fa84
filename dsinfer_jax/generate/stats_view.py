"""What the engine does, while it does it: a table that is drawn anew, or a line now and then."""

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # it is optional
    from rich.console import RenderableType
    from rich.live import Live

Snapshot = Mapping[str, float]

_TABLE_SECONDS = 0.25
_LINE_SECONDS = 5.0


class StatsView:
    """Shows an engine's snapshots until the block is left, from a thread of its own.

    On a terminal, with `rich` installed, it is a table that is gone at the end; otherwise a line
    every five seconds.

    Args:
        snapshot: gives the counts of the moment, by their Prometheus names; called from a thread.
        stream: where to show them.
        text_stream: where text goes meanwhile.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot], stream: TextIO, text_stream: TextIO
    ) -> None:
        self._snapshot, self._stream, self._text_stream = snapshot, stream, text_stream
        self._live = _live_table(stream)
        self._seconds = _LINE_SECONDS if self._live is None else _TABLE_SECONDS
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="statistics", daemon=True)

    @property
    def text_stream(self) -> "TextIO | WholeLines":
        """Where text must go: above the table if both are on a terminal."""
        if self._live is None or not self._text_stream.isatty():
            return self._text_stream
        return WholeLines(self._above)

    def __enter__(self) -> "StatsView":
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._live is not None:
            self._live.stop()

    def _show(self) -> None:
        before, then = self._snapshot(), time.monotonic()
        while not self._over.wait(self._seconds):
            after, now = self._snapshot(), time.monotonic()
            rows = stats_rows(before, after, now - then)
            if self._live is None:
                self._stream.write("; ".join(f"{name} {value}" for name, value in rows) + "\n")
                self._stream.flush()
            else:
                self._live.update(_grid(rows), refresh=True)
            before, then = after, now

    def _above(self, line: str) -> None:
        assert self._live is not None
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)


class WholeLines:
    """A text stream that passes on complete lines, because half a line cannot stand above a table.

    Args:
        show: called with each line, without its end.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._held = show, ""

    def write(self, text: str) -> None:
        *lines, self._held = (self._held + text).split("\n")
        for line in lines:
            self._show(line)

    def flush(self) -> None:
        """Half a line waits for its other half."""


def stats_rows(before: Snapshot, after: Snapshot, seconds: float) -> list[tuple[str, str]]:
    """Names and values to show: of the moment, and of the seconds between two snapshots."""

    def now(name: str) -> float:
        return after.get(f"dsinfer_{name}", 0.0)

    def added(name: str) -> float:
        return now(name) - before.get(f"dsinfer_{name}", 0.0)

    def rate(kind: str) -> str:
        tokens = added(f'step_tokens_total{{kind="{kind}"}}')
        return f"{tokens / seconds if seconds else 0.0:.1f} tokens/s"

    host, wait = added("host_seconds_total"), added("device_wait_seconds_total")
    rows = [
        ("requests", f"{now('requests_running'):.0f} running, {now('requests_waiting'):.0f} wait"),
        (
            "cache",
            f"{now('cache_blocks_used'):.0f} of {now('cache_blocks'):.0f} blocks in use, "
            f"{now('cache_blocks_stored'):.0f} findable",
        ),
        ("prefill", rate("prefill")),
        ("decode", rate("decode")),
        (
            "host",
            f"{_share(host, host + wait)} of the time, waiting for the device the rest"
            + hidden_host_time(before, after),
        ),
        (
            "prefix hits",
            f"{_share(now('cached_tokens_total'), now('prompt_tokens_total'))} of "
            f"{now('prompt_tokens_total'):.0f} prompt tokens",
        ),
    ]
    if drafts := accepted_drafts(after):
        rows.append(("drafts", drafts))
    return rows


def hidden_host_time(before: Snapshot, after: Snapshot) -> str:
    """How much of the host's time the device did not wait for; nothing where it is not counted."""
    if "dsinfer_host_hidden_seconds_total" not in after:
        return ""
    hidden, host = (
        after[name] - before.get(name, 0.0)
        for name in ("dsinfer_host_hidden_seconds_total", "dsinfer_host_seconds_total")
    )
    return f"; {_share(hidden, host)} of it hidden"


def accepted_drafts(after: Snapshot) -> str:
    """The share of drafts that were accepted so far; nothing if there were none."""
    drafted = after.get("dsinfer_drafted_tokens_total", 0.0)
    accepted = after.get("dsinfer_accepted_tokens_total", 0.0)
    return f"{_share(accepted, drafted)} of {drafted:.0f} accepted" if drafted else ""


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.0f} %"


def _live_table(stream: TextIO) -> "Live | None":
    """A display on a terminal; None for another stream, or without rich."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    console = Console(file=stream)
    if console.is_dumb_terminal:
        return None
    return Live(
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # half lines of text would be torn
    )


def _grid(rows: list[tuple[str, str]]) -> "RenderableType":
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(name, value)
    return table
