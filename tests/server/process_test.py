"""The server as a process: its command line, what it imports, its log, and how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from events import ends_well, errors_of, read_events
from live import PATHS, until

COMMAND = [sys.executable, "-m", "dsinfer_jax.server"]
HEAVY = ("jax", "jaxlib", "numpy", "ml_dtypes", "flax", "orbax", "safetensors")


class Process:
    """A server process; its log lines are read as they come."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--mock", "--port", "0", *arguments], stderr=subprocess.PIPE, text=True
        )
        self.lines: list[dict[str, Any]] = []
        self.port = 0
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._started.wait(20), "the server did not start"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line = json.loads(text)
            self.lines.append(line)
            if line["message"] == "listening":
                self.port = line["port"]
                self._started.set()

    def ask(self, dialect: str, text: str = "Hi.", stream: bool = False) -> tuple[int, bytes]:
        path, make = PATHS[dialect]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", path, json.dumps(make(text, stream=stream)))
        response = connection.getresponse()
        return response.status, response.read()

    def arrived(self) -> int:
        """Requests that run or have ended."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/status.json")
        server = json.loads(connection.getresponse().read())["server"]
        return server["running"] + sum(server["outcomes"].values())

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_number)
        code = self.process.wait(30)
        self._reader.join(5)
        return code


@contextmanager
def process(*arguments: str) -> Iterator[Process]:
    made = Process(*arguments)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def test_the_mock_imports_neither_jax_nor_numpy() -> None:
    program = (
        "import sys, asyncio, json\n"
        "from dsinfer_jax.server.mock import create_mock_app\n"
        "import dsinfer_jax.server.__main__, dsinfer_jax.server.conform.command\n"
        "from starlette.testclient import TestClient\n"
        "client = TestClient(create_mock_app())\n"
        "body = {'model': 'DeepSeek-V4.1-Flash', 'messages': [{'role': 'user', 'content': 'a'}]}\n"
        "assert client.post('/v1/chat/completions', json=body).status_code == 200\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_log_has_one_line_a_request_and_no_text_of_it() -> None:
    with process("--answer", "geheim-answer") as server:
        assert server.ask("chat", "geheim-prompt")[0] == 200
        assert server.ask("messages", "geheim-prompt", stream=True)[0] == 200
        assert server.end() in (0, -signal.SIGTERM)
        lines = [line for line in server.lines if line["message"] == "request"]
        assert "geheim" not in json.dumps(server.lines)
    assert [line["dialect"] for line in lines] == ["chat", "messages"]
    assert lines[1]["outcome"] == "ok"
    assert lines[1]["stream"] is True
    assert lines[1]["output_tokens"] > 0
    assert lines[1]["finish_reasons"] == ["stop"]
    assert lines[1]["first_output_seconds"] <= lines[1]["seconds"]


def test_prompts_are_logged_where_asked_for() -> None:
    with process("--log-prompts") as server:
        server.ask("chat", "geheim-prompt")
        server.end()
        assert any("geheim-prompt" in line.get("prompt", "") for line in server.lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "only --mock"),
        (("--mock", "--fault", "nope"), "The fault is 'nope'"),
        (("--mock", "--script", "/nope"), "No such file"),
        (("--mock", "--max-choices", "300"), "max_choices is 300"),
        (("--mock", "--tokens-per-chunk", "0"), "tokens_per_chunk is 0"),
        (("--mock", "--answer", "a", "--script", "b"), "cannot be combined"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: tuple[str, ...], message: str) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr


def test_keys_from_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann secret-1\n\nbob secret-2\n")
    with process("--api-keys-file", str(keys)) as server:
        assert server.ask("chat")[0] == 401


@pytest.mark.parametrize("patient", [True, False])
def test_sigterm_under_load_ends_every_request_with_a_result_or_an_error(patient: bool) -> None:
    """Patient: the drain is long enough for all. Otherwise: for none."""
    drain = "20" if patient else "0.5"
    with process("--delay", "0.1", "--drain-timeout", drain) as server:
        # 12 pieces or so: 1.2 seconds an answer; without patience 60 and more
        text = "Hello." if patient else "Hello. " * 200
        results: list[tuple[str, bool, int, bytes]] = []

        def client(number: int) -> None:
            dialect, stream = list(PATHS)[number % 3], number % 2 == 0
            results.append((dialect, stream, *server.ask(dialect, text, stream)))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(60)]
        for thread in threads:
            thread.start()
        until(lambda: server.arrived() >= 60)
        began = time.monotonic()
        code = server.end()
        for thread in threads:
            thread.join(20)
        assert time.monotonic() - began < 15
        assert code in (0, -signal.SIGTERM)
    assert len(results) == 60
    for dialect, stream, status, body in results:
        if patient:
            assert status == 200
            if stream:
                assert ends_well(dialect, read_events(body))
        elif stream:
            events = read_events(body)
            assert errors_of(dialect, events) == [
                "The server is shutting down; try again at another one."
            ]
        else:
            assert status == 503
            assert "shutting down" in json.loads(body)["error"]["message"]
