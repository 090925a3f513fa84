"""An answer as server-sent events: frames, pings, back-pressure, and how a stream ends.

A message to the transport always holds whole events, so no event is ever half-written. The status
line waits for the first output (or the first ping), so that a source that fails at once still gets
its own status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from dsinfer_jax.server.answer import Answer, Batch
from dsinfer_jax.server.connection import ClientGone, Receive, Send, cancel, gone, send_start
from dsinfer_jax.server.errors import Headers, RequestError, last_event
from dsinfer_jax.server.settings import ServerSettings

COMMENT = b": ping\n\n"
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect events
]


def frame(name: str | None, data: str) -> bytes:
    """One event on the wire. `data` has no line breaks: JSON escapes them."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


class EventStream:
    """Writes one answer to one client.

    `before_end` is called with the JSON of the last event before that is sent: what a client can
    ask for once it has the event must be there.

    Attributes:
        started: the status line is out; errors must be events from now on.
        events: how many events the client was sent.
    """

    def __init__(
        self,
        send: Send,
        answer: Answer,
        headers: Headers,
        settings: ServerSettings,
        before_end: Callable[[str], None],
    ) -> None:
        self._send = send
        self._answer = answer
        self._headers = [*STREAM_HEADERS, *headers]
        self._settings = settings
        self._before_end = before_end
        self._dialect = answer.prepared.dialect
        self._event_name: Callable[[Any], str | None] = self._dialect.response.sse_event_name
        self._lock = asyncio.Lock()
        self._held: Batch = []  # events before the first output
        self._first_json: str | None = None
        self._written_at = 0.0
        self._ending = False
        self.started = False
        self.events = 0

    async def run(self, receive: Receive) -> None:
        """Send everything. Raises ClientGone, and what the source raises."""
        self._written_at = asyncio.get_running_loop().time()
        producer = asyncio.ensure_future(self._produce())
        watcher = asyncio.ensure_future(gone(receive))
        try:
            while not producer.done():
                # the line may close as soon as the last bytes are out: that is no client that left
                await asyncio.wait(
                    {producer} if self._ending else {producer, watcher},
                    timeout=self._until_ping(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if watcher.done() and not producer.done() and not self._ending:
                    raise ClientGone
                if not producer.done() and self._until_ping() <= 0:
                    await self._ping()
            producer.result()
        finally:
            await cancel(producer, watcher)

    async def fail(self, error: RequestError, request_id: str) -> None:
        """End a stream that has started with an error."""
        name, data = last_event(self._dialect, error, request_id, self.events, self._first_json)
        await self._write(frame(name, data), more=False)

    async def _produce(self) -> None:
        async with aclosing(self._answer.batches()) as batches:
            async for batch in batches:
                if self._answer.first_output is None:
                    self._held += batch
                else:
                    held, self._held = self._held, []
                    await self._write_events(held + batch)
        self._ending = True
        done = self._dialect.response.sse_done_data()
        await self._write(frame(None, done) if done else b"", more=False)

    async def _ping(self) -> None:
        """Something for a quiet connection, after the events that were held back."""
        held, self._held = self._held, []
        if held:
            await self._write_events(held)
        pings = self._answer.pings()
        if pings:
            await self._write_events(pings)
        else:
            await self._write(COMMENT)

    async def _write_events(self, events: Batch) -> None:
        frames = []
        data = ""
        for event in events:
            data = event.to_json()
            if self._first_json is None:
                self._first_json = data
            frames.append(frame(self._event_name(event), data))
        if self._answer.complete:
            self._before_end(data)
        await self._write(b"".join(frames))
        self.events += len(events)

    async def _write(self, data: bytes, more: bool = True) -> None:
        """One message to the transport, which waits while the client does not read."""
        try:
            async with asyncio.timeout(self._settings.write_timeout) as timeout, self._lock:
                if not self.started:
                    await send_start(self._send, 200, self._headers)
                    self.started = True
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            if not timeout.expired():
                raise
            raise ClientGone from None
        self._written_at = asyncio.get_running_loop().time()

    def _until_ping(self) -> float:
        if self._lock.locked():  # a write waits for the client: the line is not quiet but full
            return self._settings.ping_interval
        quiet = asyncio.get_running_loop().time() - self._written_at
        return max(0.0, self._settings.ping_interval - quiet)
