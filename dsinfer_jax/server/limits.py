"""How much runs at the same time, how much memory bodies may take, and how a server comes to rest.

Everything here is used from one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from dsinfer_jax.server.errors import RequestError
from dsinfer_jax.server.settings import ServerSettings

FULL = "Too many requests are running; try again later."
BODIES_FULL = "Too many request bodies are being read; try again later."
DRAINING = "The server is shutting down; try again at another one."


class Ticket:
    """The right to do something until `deadline` (on `time.monotonic`)."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._timeout: asyncio.Timeout | None = None

    def timeout(self) -> asyncio.Timeout:
        """A context that raises TimeoutError at the deadline, which may come nearer meanwhile."""
        self._timeout = asyncio.timeout_at(_on_loop(self.deadline))
        return self._timeout

    def shorten(self, deadline: float) -> None:
        """Bring the deadline nearer."""
        if deadline >= self.deadline:
            return
        self.deadline = deadline
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(_on_loop(deadline))


class Admission:
    """Who may run.

    Attributes:
        running: tickets that are out.
        body_bytes: of bodies in memory.
        draining: no new requests; running ones end at the drain deadline at the latest.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._tickets: set[Ticket] = set()
        self._readers: set[Ticket] = set()  # of requests whose bodies are still coming
        self.body_bytes = 0
        self.draining = False

    @property
    def running(self) -> int:
        return len(self._tickets)

    @contextmanager
    def admit(self) -> Iterator[Ticket]:
        """A ticket for one request; RequestError 429 or 503 if it cannot run now."""
        if self.draining:
            raise RequestError(503, DRAINING, self._settings.drain_timeout)
        if self.running >= self._settings.max_running:
            raise RequestError(429, FULL, self._settings.retry_after)
        with _held(self._tickets, self._settings.request_timeout) as ticket:
            yield ticket

    @contextmanager
    def reading(self) -> Iterator[Ticket]:
        """A ticket for the time in which a body may arrive."""
        with _held(self._readers, self._settings.body_timeout) as ticket:
            yield ticket

    def reserve(self, size: int) -> None:
        """Count bytes of a body; RequestError 429 if there are too many already."""
        if self.body_bytes + size > self._settings.max_bodies:
            raise RequestError(429, BODIES_FULL, self._settings.retry_after)
        self.body_bytes += size

    def release(self, size: int) -> None:
        """The bytes of a body are free again."""
        self.body_bytes -= size

    def drain(self) -> None:
        """Refuse new requests and give the running ones `drain_timeout`."""
        if self.draining:
            return
        self.draining = True
        deadline = monotonic() + self._settings.drain_timeout
        for ticket in [*self._tickets, *self._readers]:
            ticket.shorten(deadline)


@contextmanager
def _held(tickets: set[Ticket], seconds: float) -> Iterator[Ticket]:
    """A new ticket that is among these until the block ends."""
    ticket = Ticket(monotonic() + seconds)
    tickets.add(ticket)
    try:
        yield ticket
    finally:
        tickets.discard(ticket)


def _on_loop(deadline: float) -> float:
    """A time of `time.monotonic` on the clock of the running loop."""
    return asyncio.get_running_loop().time() + deadline - monotonic()
