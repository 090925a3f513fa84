"""Many streams at once. The long ones are marked slow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "tools" / "bench_server.py"
MOST_MIB = 400


def measure(*options: str) -> dict[str, int]:
    """Figures of the benchmark; it fails if a stream has no end."""
    done = subprocess.run(
        [sys.executable, str(BENCH), *options],
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_hundred_streams_at_once() -> None:
    result = measure("--streams", "100", "--tokens", "50", "--rounds", "1", "--delay-ms", "1")
    assert result["peak_mib"] < MOST_MIB


@pytest.mark.slow
def test_a_thousand_streams_at_once_in_bounded_memory() -> None:
    result = measure("--streams", "1000", "--rounds", "4")
    peaks = [row["peak_mib"] for row in result["rounds"]]  # type: ignore[attr-defined]
    assert peaks[-1] < MOST_MIB
    assert peaks[-1] - peaks[1] < 20  # a leak would grow with every round
