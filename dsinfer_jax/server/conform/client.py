"""A strict HTTP client: whole bodies, and event streams with the times at which events came."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

LONGEST_LINE = 1 << 24


class Violation(Exception):  # noqa: N818 - a finding, not an error of this program
    """A law that a server broke, as a sentence."""


@dataclass
class Event:
    """One event with data; `gap` is the time in seconds since the last bytes came."""

    name: str | None
    data: str
    gap: float = 0.0

    def json(self) -> Any:
        try:
            return json.loads(self.data)
        except ValueError:
            raise Violation(f"the data of an event is not JSON: {self.data[:80]!r}") from None


@dataclass
class Reply:
    """What a server answered; `events` of a stream, `body` otherwise."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    events: list[Event] = field(default_factory=list)
    is_stream: bool = False
    longest_gap: float = 0.0

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Violation(f"a body is not JSON: {self.body[:80]!r}") from None


class Target:
    """A server to check.

    Args:
        url: up to, but without, `/v1`.
        headers: sent with every request.
        timeout: seconds for each answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the address is {url!r}; it must begin with http:// or https://")
        self._is_secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json", **headers}
        self.timeout = timeout

    def connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=self.timeout)

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        """One exchange, read to its end. Raises Violation if there is no proper end."""
        connection = self.connect()
        try:
            return self._exchange(connection, method, path, body)
        except TimeoutError:
            raise Violation(f"no end came within {self.timeout:g} seconds") from None
        except (OSError, http.client.HTTPException) as error:
            raise Violation(f"the connection broke: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def begin(self, path: str, body: Any) -> None:
        """Begin an exchange and leave after the first bytes of its answer."""
        connection = self.connect()
        try:
            connection.request("POST", self._prefix + path, _bytes(body), self._headers)
            connection.getresponse().read(1)
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # whatever it was, the next request shows whether the server lives
        finally:
            connection.close()

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> Reply:
        end = monotonic() + self.timeout
        connection.request(method, self._prefix + path, _bytes(body), self._headers)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        reply = Reply(response.status, headers)
        if headers.get("content-type", "").startswith("text/event-stream"):
            reply.is_stream = True
            _read_stream(response, reply, end)
        else:
            reply.body = response.read()
        return reply


def _bytes(body: Any) -> bytes | None:
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


def _read_stream(response: http.client.HTTPResponse, reply: Reply, end: float) -> None:
    lines: list[str] = []
    last = monotonic()
    gap = 0.0
    while raw := response.readline(LONGEST_LINE):
        now = monotonic()
        if now > end:
            raise TimeoutError
        gap = max(gap, now - last)
        last = now
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise Violation(f"an event is not UTF-8: {raw[:80]!r}") from None
        if not line.endswith("\n"):
            raise Violation(f"the stream ends in the middle of a line: {line[-80:]!r}")
        reply.longest_gap = max(reply.longest_gap, gap)
        if line.strip("\r\n"):
            lines.append(line.rstrip("\r\n"))
        elif lines:
            _add_event(lines, reply, gap)
            lines, gap = [], 0.0
    if lines:
        raise Violation(f"the stream ends in the middle of an event: {lines[-1][:80]!r}")


def _add_event(lines: list[str], reply: Reply, gap: float) -> None:
    """The event of these lines, if it is more than comments."""
    name = None
    data = []
    for line in lines:
        member, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if member == "event":
            name = value
        elif member == "data":
            data.append(value)
        elif member not in ("", "id", "retry"):
            raise Violation(f"a line of an event is none of event, data, id, retry: {line[:80]!r}")
    if data:
        reply.events.append(Event(name, "\n".join(data), gap))
