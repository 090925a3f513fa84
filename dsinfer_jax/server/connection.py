"""HTTP below the dialects: reading a body, sending a response, a client that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from dsinfer_jax.server.errors import Headers, RequestError
from dsinfer_jax.server.limits import Admission
from dsinfer_jax.server.settings import ServerSettings

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Result = TypeVar("Result")

JSON_TYPE = b"application/json"


class ClientGone(Exception):  # noqa: N818 - not a fault of anybody
    """The client closed the connection, or stopped reading, before the answer was complete."""


class Body:
    """A request body whose bytes are counted by `admission` until `release`."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._parts: list[bytes] = []
        self.size = 0

    def add(self, part: bytes) -> None:
        self._admission.reserve(len(part))
        self.size += len(part)
        self._parts.append(part)

    def take(self) -> bytes:
        """The whole body; it stays counted."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def release(self) -> None:
        self._parts = []
        self._admission.release(self.size)
        self.size = 0


async def read_body(
    receive: Receive, body: Body, settings: ServerSettings, refused: RequestError | None = None
) -> None:
    """Read the whole body. Raises RequestError 413 or 429, ClientGone, and `refused` at last.

    The body of a request that is refused is read to its end without being kept, up to four times
    the limit, because many clients read no response before they have sent everything.
    """
    seen = 0
    more = True
    while more and seen <= 4 * settings.max_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        more = message.get("more_body", False)
        seen += len(part)
        if refused is None:
            refused = _keep(part, seen, body, settings)
    if refused is not None:
        raise refused


def _keep(part: bytes, seen: int, body: Body, settings: ServerSettings) -> RequestError | None:
    """Keep a part of the body; why not, if it cannot be."""
    if seen > settings.max_body:
        body.release()
        return RequestError(413, f"The request body is longer than {settings.max_body} bytes.")
    try:
        body.add(part)
    except RequestError as error:
        body.release()
        return error
    return None


async def until_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; if the client leaves first, it is cancelled and ClientGone raised."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await cancel(task, watcher)


async def gone(receive: Receive) -> None:
    """Returns when the client has left. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def send_start(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_whole(
    send: Send, status: int, body: bytes, headers: Headers, content_type: bytes = JSON_TYPE
) -> None:
    """A response that is not streamed."""
    sized = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send_start(send, status, sized)
    await send({"type": "http.response.body", "body": body})


def header_table(scope: Scope) -> dict[str, str]:
    """Request headers by name in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]}  # fmt: skip
