"""Faults of a server on demand: spoils the bytes of event streams on their way out.

The server itself cannot make these, so clients need somebody who does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from dsinfer_jax.server.connection import Message, Receive, Scope, Send, header_table
from dsinfer_jax.server.errors import RequestError
from dsinfer_jax.server.generate import HINT
from dsinfer_jax.server.mock.faults import WIRE_FAULTS, Fault, read_fault
from dsinfer_jax.server.mock.source import FAULT_HINT

CHARACTER = re.compile(rb"[\xc2-\xf4][\x80-\xbf]")
FIRST_MESSAGES = 3

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class WireFaults:
    """Passes a request on, with a `send` that spoils the response if a wire fault is wanted."""

    def __init__(self, app: App, fault: Fault | None = None) -> None:
        self._app = app
        self._fault = fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            name = self._wanted(scope)
            if name in WIRE_FAULTS:
                send = Spoiler(name, send).send
        await self._app(scope, receive, send)

    def _wanted(self, scope: Scope) -> str | None:
        given = header_table(scope).get(HINT + FAULT_HINT)
        try:
            fault = self._fault if given is None else read_fault(given)
        except RequestError:  # the source says so, in the shape of the dialect
            return None
        return fault.name if fault else None


class Spoiler:
    """Spoils one response if it is a stream."""

    def __init__(self, name: str, send: Send) -> None:
        self._name = name
        self._send = send
        self._is_stream = False
        self._messages = 0
        self._ended = False
        self._last = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            types = dict(message["headers"])
            self._is_stream = types.get(b"content-type", b"").startswith(b"text/event-stream")
        if message["type"] != "http.response.body" or not self._is_stream:
            await self._send(message)
        elif not self._ended:
            await self._spoil(message)

    async def _spoil(self, message: Message) -> None:
        body, more = message["body"], message["more_body"]
        self._messages += 1
        if self._name == "wire-half-character":
            found = CHARACTER.search(body)
            if found is not None:
                body = body[: found.start() + 1] + body[found.end() :]
        elif self._name == "wire-early-end":
            more = more and self._messages < FIRST_MESSAGES
            body = body if more else b""
        elif not more:  # wire-duplicate-finish
            body = self._last + body
        self._ended = not more
        self._last = body
        await self._send({**message, "body": body, "more_body": more})
