"""Many streams at once against a server: errors, time to the first event, memory.

The server is a process of its own; the clients are another one, so both share the machine.

    python tools/bench_server.py [--streams 1000] [--tokens 100] [--delay-ms 20] [--rounds 3]
    python tools/bench_server.py --model demo --slots 64 --streams 64 [--tokens 100]

Every stream must be complete: whole events, and the end of its dialect. Prints one line a round,
then all figures as JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = "DeepSeek-V4.1-Flash"
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
LAST = {
    "chat": (b"data: [DONE]\n\n",),
    "responses": (b"event: response.completed\n", b"event: response.incomplete\n"),
    "messages": (b'data: {"type":"message_stop"}\n\n',),
}
MEBIBYTE = 1024  # kibibytes, the unit of /proc


@dataclass
class Round:
    """What one round of streams came to."""

    seconds: float = 0.0
    first_event: list[float] = field(default_factory=list)
    events: int = 0
    bytes: int = 0
    errors: list[str] = field(default_factory=list)


def body(dialect: str, words: int, limit: int) -> bytes:
    """A request whose answer has about so many tokens: the mock says it again."""
    text = "mer " * words
    shared: dict[str, Any] = {"model": MODEL, "stream": True}
    if dialect == "responses":
        off: dict[str, str] = {"effort": "none"}
        shared |= {"input": text, "reasoning": off, "max_output_tokens": limit}
    else:
        turns = [{"role": "user", "content": text}]
        off = {"type": "disabled"}
        shared |= {"messages": turns, "thinking": off, "max_tokens": limit}
    return json.dumps(shared).encode()


async def stream(port: int, dialect: str, sent: bytes, into: Round) -> None:
    """One stream to its end."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {PATHS[dialect]} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        status = await reader.readline()
        if b" 200 " not in status:
            into.errors.append(status.decode().strip())
            return
        await reader.readuntil(b"\r\n\r\n")
        received = await reader.readline()
        into.first_event.append(time.perf_counter() - began)
        while more := await reader.read(1 << 16):
            received += more
        into.bytes += len(received)
        into.events += received.count(b"data: ")
        if not any(end in received for end in LAST[dialect]):
            into.errors.append("the stream has no end")
    except (OSError, asyncio.IncompleteReadError) as error:
        into.errors.append(repr(error))
    finally:
        writer.close()


async def run_round(port: int, streams: int, words: int, limit: int) -> Round:
    result = Round()
    bodies = {dialect: body(dialect, words, limit) for dialect in PATHS}
    began = time.perf_counter()
    names = list(PATHS)
    await asyncio.gather(
        *(stream(port, names[n % 3], bodies[names[n % 3]], result) for n in range(streams))
    )
    result.seconds = time.perf_counter() - began
    return result


def memory(process: subprocess.Popen[str], name: str) -> int:
    """A line of /proc/PID/status in kibibytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Processor time of the server so far."""
    values = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def start(chosen: argparse.Namespace) -> tuple[subprocess.Popen[str], int]:
    """A server and its port."""
    command = [sys.executable, "-m", "dsinfer_jax.server", "--port", "0"]
    command += ["--max-running", str(2 * chosen.streams)]
    if chosen.model is None:
        command += ["--mock", "--delay", str(chosen.delay_ms / 1e3)]
    else:
        command += ["--model", chosen.model, "--slots", str(chosen.slots)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for text in process.stderr:
        line = json.loads(text)
        if line["message"] == "listening":
            return process, line["port"]
    raise RuntimeError("the server did not start")


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds against one server; figures of each."""
    process, port = start(chosen)
    assert process.stderr is not None
    log = process.stderr
    limit = 9_000 if chosen.model is None else chosen.tokens
    results = []
    try:
        idle = memory(process, "VmRSS")

        async def all_rounds() -> None:
            # somebody must read the log, or the server would wait for its reader
            reading = asyncio.ensure_future(asyncio.to_thread(log.read))
            for _ in range(chosen.rounds):
                used = cpu_seconds(process)
                result = await run_round(port, chosen.streams, chosen.tokens, limit)
                used = cpu_seconds(process) - used
                await asyncio.sleep(0.5)
                results.append(figures(result, used, process))
                print(describe(results[-1], chosen.streams))
            process.terminate()
            await reading

        asyncio.run(all_rounds())
    finally:
        process.kill()
    peak = max(result["peak_mib"] for result in results)
    return {
        **vars(chosen),
        "idle_mib": idle // MEBIBYTE,
        "peak_mib": peak,
        "rounds": results,
    }


def figures(result: Round, used: float, process: subprocess.Popen[str]) -> dict[str, Any]:
    first = sorted(result.first_event) or [0.0]
    return {
        "seconds": round(result.seconds, 2),
        "errors": result.errors[:5],
        "failed": len(result.errors),
        "events_per_second": round(result.events / result.seconds),
        "first_event_median": round(statistics.median(first), 3),
        "first_event_p99": round(first[int(len(first) * 0.99)], 3),
        "cpu_us_per_event": round(used / max(1, result.events) * 1e6, 1),
        "rss_mib": memory(process, "VmRSS") // MEBIBYTE,
        "peak_mib": memory(process, "VmHWM") // MEBIBYTE,
    }


def describe(row: dict[str, Any], streams: int) -> str:
    return (
        f"{streams} streams in {row['seconds']} s, {row['failed']} failed, "
        f"{row['events_per_second']} events/s, first event {row['first_event_median']} s "
        f"(p99 {row['first_event_p99']} s), {row['cpu_us_per_event']} us of processor an event, "
        f"{row['rss_mib']} MiB after it, "
        f"{row['peak_mib']} MiB at most"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--tokens", type=int, default=100, help="words of each answer")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="of the mock, before a piece")
    parser.add_argument("--model", help="serve this; default: the mock")
    parser.add_argument("--slots", type=int, default=64, help="of the model's engine")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    result = measure(chosen)
    print(json.dumps(result))
    return 1 if any(row["failed"] for row in result["rounds"]) else 0


if __name__ == "__main__":
    sys.exit(main())
