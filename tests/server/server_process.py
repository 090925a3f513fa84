"""A server in a process of its own."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from live import PATHS

COMMAND = [sys.executable, "-m", "dsinfer_jax.server"]


class Process:
    """A server process; its log lines are read as they come."""

    def __init__(self, *arguments: str, mock: bool = True) -> None:
        kind = ["--mock"] if mock else []
        self.process = subprocess.Popen(
            [*COMMAND, *kind, "--port", "0", *arguments], stderr=subprocess.PIPE, text=True
        )
        self.lines: list[dict[str, Any]] = []
        self.port = 0
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._started.wait(20 if mock else 300):  # a model has programs to compile
            self.process.kill()
            raise AssertionError("the server did not start")

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

    def status(self) -> dict[str, Any]:
        """What the server says about itself."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/status.json")
        return json.loads(connection.getresponse().read())["server"]

    def running(self) -> int:
        return self.status()["running"]

    def arrived(self) -> int:
        """Requests that run or have ended."""
        status = self.status()
        return status["running"] + sum(status["outcomes"].values())

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_number)
        code = self.process.wait(90)
        self._reader.join(5)
        return code


@contextmanager
def process(*arguments: str, mock: bool = True) -> Iterator[Process]:
    made = Process(*arguments, mock=mock)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
