"""What --stats shows while the engine runs: on a terminal, on a pipe, without rich."""

import io
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dsinfer_jax.generate import stats_view
from dsinfer_jax.generate.stats_view import StatsView, WholeLines, stats_rows

BEFORE = {
    "dsinfer_requests_running": 1,
    'dsinfer_step_tokens_total{kind="prefill"}': 100,
    'dsinfer_step_tokens_total{kind="decode"}': 10,
    "dsinfer_host_seconds_total": 1.0,
    "dsinfer_device_wait_seconds_total": 1.0,
    "dsinfer_host_hidden_seconds_total": 0.5,
}
AFTER = {
    **BEFORE,
    "dsinfer_requests_running": 5,
    "dsinfer_requests_waiting": 3,
    "dsinfer_cache_blocks": 72,
    "dsinfer_cache_blocks_used": 40,
    "dsinfer_cache_blocks_stored": 61,
    'dsinfer_step_tokens_total{kind="prefill"}': 600,
    'dsinfer_step_tokens_total{kind="decode"}': 40,
    "dsinfer_host_seconds_total": 1.5,
    "dsinfer_device_wait_seconds_total": 2.5,
    "dsinfer_host_hidden_seconds_total": 0.9,
    "dsinfer_prompt_tokens_total": 800,
    "dsinfer_cached_tokens_total": 200,
    "dsinfer_drafted_tokens_total": 50,
    "dsinfer_accepted_tokens_total": 30,
}
ROWS = [
    ("requests", "5 running, 3 wait"),
    ("cache", "40 of 72 blocks in use, 61 findable"),
    ("prefill", "250.0 tokens/s"),
    ("decode", "15.0 tokens/s"),
    ("host", "25 % of the time, waiting for the device the rest; 80 % of it hidden"),
    ("prefix hits", "25 % of 800 prompt tokens"),
    ("drafts", "60 % of 50 accepted"),
]


def test_rates_are_of_the_time_between_two_snapshots() -> None:
    assert stats_rows(BEFORE, AFTER, 2.0) == ROWS


def test_what_nobody_counts_is_not_shown() -> None:
    rows = dict(stats_rows({}, {"dsinfer_host_seconds_total": 1.0}, 0.0))
    assert rows["host"] == "100 % of the time, waiting for the device the rest"
    assert rows["prefill"] == "0.0 tokens/s"
    assert "drafts" not in rows


def test_the_names_are_those_of_the_engine() -> None:
    """Every name that is read, apart from those of what an engine may lack."""
    from dsinfer_jax.engine.stats import PhaseStats, RequestStats, phase_entries

    known = {
        **RequestStats().entries(),
        **phase_entries("prefill", PhaseStats()),
        **phase_entries("decode", PhaseStats()),
    }
    gauges = ("requests_", "cache_blocks", "host_", "device_wait_")  # of LLMEngine.snapshot
    optional = ("drafted_", "accepted_")
    for name in AFTER:
        if not name.removeprefix("dsinfer_").startswith((*gauges, *optional)):
            assert name in known


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def counted() -> tuple[Callable[[], dict[str, float]], threading.Event]:
    """Snapshots, and an event that is set when a few were taken."""
    taken: list[int] = []
    enough = threading.Event()

    def snapshot() -> dict[str, float]:
        taken.append(1)
        if len(taken) > 3:
            enough.set()
        return dict(BEFORE if len(taken) == 1 else AFTER)

    return snapshot, enough


@pytest.mark.parametrize("cause", ["no terminal", "no rich", "a dumb terminal"])
def test_plain_lines(monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    monkeypatch.setattr(stats_view, "_LINE_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "dumb" if cause == "a dumb terminal" else "xterm")
    if cause == "no rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = io.StringIO() if cause == "no terminal" else Terminal()
    text, (snapshot, enough) = Terminal(), counted()
    with StatsView(snapshot, stream, text) as view:
        assert view.text_stream is text
        assert enough.wait(20)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 2
    assert lines[0].startswith("requests 5 running, 3 wait; cache 40 of 72 blocks in use")
    assert "\x1b" not in stream.getvalue()
    assert view._thread.is_alive() is False


def test_a_table_on_a_terminal_with_text_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(stats_view, "_TABLE_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    stream, (snapshot, enough) = Terminal(), counted()
    with StatsView(snapshot, stream, Terminal()) as view:
        text = view.text_stream
        text.write("half a ")
        text.flush()
        assert enough.wait(20)
        assert "half" not in stream.getvalue()
        text.write("[bold]line\n")
    shown = stream.getvalue()
    assert "half a [bold]line\n" in shown
    assert "5 running, 3 wait" in shown
    assert "60 % of 50 accepted" in shown


def test_text_that_goes_elsewhere_is_not_touched() -> None:
    text = io.StringIO()
    view = StatsView(dict, Terminal(), text)
    assert view.text_stream is text


def test_a_failure_within_leaves_no_thread() -> None:
    with pytest.raises(RuntimeError), StatsView(dict, io.StringIO(), io.StringIO()) as view:
        raise RuntimeError
    time.sleep(0)
    assert not view._thread.is_alive()


def test_lines_are_passed_on_when_they_are_whole() -> None:
    lines: list[Any] = []
    stream = WholeLines(lines.append)
    for part in ("a", "b\nc", "\n\nd", "e\n"):
        stream.write(part)
        stream.flush()
    assert lines == ["ab", "c", "", "de"]
