"""Many streams at once. The long ones are marked slow."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from live import PATHS, until
from server_process import process

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


def resident_mib(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if "VmRSS" in line).split()[1]) // 1024


@pytest.mark.slow
def test_storms_of_clients_that_leave_leak_nothing() -> None:
    """Four storms of 1 500 clients each; the last ones need no more memory than the second."""
    with process("--delay", "0.02") as server:
        sizes = []
        for _ in range(4):
            asyncio.run(storm(server.port, 1_500))
            until(lambda: server.running() == 0, seconds=20)
            sizes.append(resident_mib(server.process))
        assert server.ask("chat")[0] == 200
        outcomes = server.status()["outcomes"]
    assert outcomes["client_gone"] > 4_000
    assert "failed" not in outcomes
    assert sizes[3] - sizes[1] < 15


async def storm(port: int, clients: int) -> None:
    """Clients that leave before, in, or after the first bytes of their answers."""
    gate = asyncio.Semaphore(300)
    names = list(PATHS)

    async def client(number: int) -> None:
        path, make = PATHS[names[number % 3]]
        body = json.dumps(make("mer " * 100, stream=number % 5 > 0)).encode()
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
            sent = head.encode() + body
            writer.write(sent[: len(sent) // 2] if number % 7 == 0 else sent)
            await writer.drain()
            if number % 2:
                await asyncio.wait_for(reader.read(1 + number % 50), 5) if number % 7 else None
            writer.transport.abort()

    await asyncio.gather(*(client(number) for number in range(clients)), return_exceptions=True)
