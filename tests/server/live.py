"""A server on a real socket, in a thread of the test process."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette

from dsinfer_jax.server.process import make_server

MODEL = "DeepSeek-V4.1-Flash"


@dataclass
class Reply:
    """A response that was read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Live:
    """A running server."""

    app: Starlette
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request; `body` is JSON unless it is bytes; `_` in header names stands for `-`."""
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connection()
        try:
            connection.request(method, path, raw, names)
            response = connection.getresponse()
            table = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, table, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.ask("POST", path, body, **headers)

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, **headers)


ENDING: list[threading.Thread] = []  # servers that were told to end; the session waits for them


@contextmanager
def running(app: Starlette) -> Iterator[Live]:
    """Serve an application until the block ends; coming to rest takes it a little longer."""
    server = make_server(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        yield Live(app, server.port)
    finally:
        server.should_exit = True
        ENDING.append(thread)


def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait until a condition holds; AssertionError if it does not come to hold."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come to hold"
        time.sleep(0.01)


def chat(text: str = "Say hello to the sea.", **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **members}


def responses(text: Any = "Say hello to the sea.", **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, **members}


def messages(text: str = "Say hello to the sea.", **members: Any) -> dict[str, Any]:
    return {**chat(text), "max_tokens": 1_000, **members}


PATHS = {
    "chat": ("/v1/chat/completions", chat),
    "responses": ("/v1/responses", responses),
    "messages": ("/v1/messages", messages),
}
