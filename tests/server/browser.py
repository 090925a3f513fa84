"""Chromium without a window, driven by the WebDriver protocol (W3C) with the standard library."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROGRAMS = ("chromium", "chromedriver")
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Browser:
    """One window."""

    def __init__(self, port: int) -> None:
        self._port = port
        options = {"binary": shutil.which("chromium"), "args": ARGUMENTS}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._command("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def open(self, url: str) -> None:
        self._command("POST", f"{self._session}/url", {"url": url})

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        body = {"script": f"return {expression}", "args": []}
        return self._command("POST", f"{self._session}/execute/sync", body)

    def console(self) -> list[str]:
        """What was written to the console since the last call."""
        entries = self._command("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def close(self) -> None:
        self._command("DELETE", self._session)

    def _command(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            raw = None if body is None else json.dumps(body)
            connection.request(method, path, raw, {"content-type": "application/json"})
            response = connection.getresponse()
            value = json.loads(response.read())["value"]
            assert response.status == 200, value
            return value
        finally:
            connection.close()


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty window."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        made = Browser(_port_of(driver))
        try:
            yield made
        finally:
            made.close()
    finally:
        driver.terminate()
        driver.wait(20)


def _port_of(driver: subprocess.Popen[str]) -> int:
    """Where the driver listens, which is in the line that says that it has started."""
    assert driver.stdout is not None
    for line in driver.stdout:
        _, found, port = line.strip().rstrip(".").rpartition("started successfully on port ")
        if found:
            return int(port)
    raise AssertionError("chromedriver did not start")
