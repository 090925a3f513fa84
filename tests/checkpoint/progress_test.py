"""The progress bar speaks only when the work is slow."""

import io

import pytest

from dsinfer_jax.checkpoint.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_quick_work_is_silent(kind: type[io.StringIO]) -> None:
    stream, clock = kind(), Clock()
    progress = Progress("loading", 10, stream=stream, clock=clock)
    progress.add(5)
    clock.now += 0.9
    progress.add(5)
    progress.close()
    assert stream.getvalue() == ""


def test_a_terminal_line_is_rewritten() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress("loading x", 4_000_000_000, stream=stream, clock=clock)
    for _ in range(4):
        clock.now += 1.5
        progress.add(1_000_000_000)
    progress.close()
    assert stream.getvalue().count("\n") == 1
    _, *lines = stream.getvalue().split("\r")
    assert "loading x [########......................]  25%" in lines[0]
    assert "1.00 of 4.00 GB, 667 MB/s" in lines[0]
    assert "100%" in lines[-1]


def test_a_log_gets_few_lines() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("loading", 300, stream=stream, clock=clock)
    for _ in range(300):
        clock.now += 0.1
        progress.add(1)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4  # after 1, 11 and 21 seconds, and at the end
    assert "100%" in lines[-1]
