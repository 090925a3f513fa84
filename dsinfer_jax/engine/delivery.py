"""Deltas from the thread that makes steps to the tasks that read them; no step waits for a reader.

What is not read is merged, so that a reader who is late holds one delta for each of its answers.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping

from dsinfer_jax.engine.answers import Answer
from dsinfer_jax.engine.request import Delta


class Outbox:
    """Deltas on their way to an event loop, which is woken once for all of them.

    Args:
        loop: where `receive` is called.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        receive: Callable[[Mapping[Answer, Delta]], None],
    ) -> None:
        self._loop, self._receive = loop, receive
        self._lock = threading.Lock()
        self._deltas: dict[Answer, Delta] = {}

    def put(self, deltas: Iterable[tuple[Answer, Delta]]) -> None:
        """Hand over what a step added, from any thread. Raises RuntimeError for a closed loop."""
        with self._lock:
            asleep = not self._deltas
            for answer, delta in deltas:
                _add(self._deltas, answer, delta)
            wake = asleep and bool(self._deltas)
        if wake:
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            deltas, self._deltas = self._deltas, {}
        self._receive(deltas)


class Reader:
    """What one task has still to read. It belongs to the event loop.

    Args:
        request_id: by which the request can be aborted.

    Attributes:
        open: answers whose last delta has not come.
        aborted: whether it was told to end, perhaps before it had answers.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.open: set[Answer] = set()
        self.aborted = False
        self._unread: dict[Answer, Delta] = {}
        self._news = asyncio.Event()

    def put(self, answer: Answer, delta: Delta) -> None:
        """Take a delta; one with an output is the last of its answer."""
        _add(self._unread, answer, delta)
        if delta.output is not None:
            self.open.discard(answer)
        self._news.set()

    async def next(self) -> Delta | None:
        """Wait for a delta; None after the last of all answers."""
        while not self._unread:
            if not self.open:
                return None
            self._news.clear()
            await self._news.wait()
        return self._unread.pop(next(iter(self._unread)))


def _add(deltas: dict[Answer, Delta], answer: Answer, new: Delta) -> None:
    """Put a delta behind the one that its answer already has."""
    old = deltas.get(answer)
    if old is None:
        deltas[answer] = new
        return
    old.token_ids += new.token_ids
    old.logprobs += new.logprobs
    old.top_logprobs += new.top_logprobs
    old.text += new.text
    old.finish_reason, old.error, old.output = new.finish_reason, new.error, new.output
