"""AsyncEngine: many callers of one event loop share an LLM, whose steps run on their own thread."""

import asyncio
import itertools
import logging
import math
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from dsinfer_jax.engine.answers import Answer
from dsinfer_jax.engine.delivery import Outbox, Reader
from dsinfer_jax.engine.llm import LLM, Prompt
from dsinfer_jax.engine.request import Delta, FinishReason, SamplingParams
from dsinfer_jax.engine.step_thread import StepThread

_LOG = logging.getLogger(__name__)


class EngineUnavailableError(RuntimeError):
    """The engine takes no requests: it was not entered, drains, is closed, or has failed."""


class AsyncEngine:
    """Serves requests from an event loop; used as `async with AsyncEngine(llm) as engine`.

    Requests join whatever runs, at any time. The engine belongs to the loop in which it was
    entered: `generate` and `drain` in another loop are refused, `abort` and `snapshot` may be
    called from any thread. Leaving the block ends what still runs.

    Args:
        llm: used by nobody else meanwhile; it stays open afterwards.

    Raises:
        ValueError: the model is that of several processes.
    """

    def __init__(self, llm: LLM) -> None:
        if llm.engine.hosts is not None:
            raise ValueError(
                "the model runs in several processes, and requests that come at any time would "
                "reach one of them only; serve from one process, or use LLM.generate"
            )
        self._llm = llm
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusal: str | None = "the engine was not entered; use it with `async with`"
        self._failure: Exception | None = None
        self._numbers = itertools.count()
        self._readers: dict[str, Reader] = {}  # of requests that have not ended
        self._reader_of: dict[Answer, Reader] = {}
        self._idle, self._over = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> "AsyncEngine":
        """Start. Raises RuntimeError if the model is in use, or this engine was entered before."""
        if self._loop is not None:
            raise RuntimeError("an AsyncEngine can be entered once; make another")
        self._llm.claim()
        self._loop = asyncio.get_running_loop()
        outbox = Outbox(self._loop, self._receive)
        self._thread = StepThread(self._llm.engine, outbox.put, self._thread_ended)
        self._thread.start()
        self._refusal = None
        return self

    async def __aexit__(self, *exception: object) -> None:
        """End what runs, and then the thread."""
        self._refusal = self._refusal or "the engine is closed"
        self._thread.stop()
        await self._over.wait()
        self._thread.join()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[Delta, None]:
        """Answers to one prompt, as they come; the last delta of each has its whole output.

        Deltas that are not read in time are merged. Closing the iterator, or cancelling the task
        that reads it, aborts the request before the next step; `contextlib.aclosing` closes it
        where a loop is left early.

        Args:
            prompt, params: as in `LLM.generate`; `params.n` answers come side by side.
            request_id: for `abort`; no two requests at a time may have the same.
            priority: lower runs first.
            deadline: on time.monotonic(): past it the request ends with `deadline_exceeded`.
            tenant: requests of different tenants never share cached prefixes.

        Raises:
            ValueError: a field that cannot be used, in one sentence. What only the engine knows,
                such as a prompt that is too long, comes as a result with an error.
            EngineUnavailableError: the engine takes no requests; the message says why.
            RuntimeError: called in another event loop.
        """
        params = SamplingParams() if params is None else params
        _check_fields(params, request_id, priority, deadline, tenant)
        number = next(self._numbers)
        reader = self._register(f"request {number}" if request_id is None else request_id)
        try:
            answers = await asyncio.to_thread(  # long texts take long to encode
                self._llm.answers_to, prompt, params,
                index=number, priority=priority, deadline=deadline, tenant=tenant,
            )  # fmt: skip
            self._begin(reader, answers)
            while (delta := await reader.next()) is not None:
                yield delta
        finally:
            self._forget(reader)

    def abort(self, request_id: str) -> None:
        """End a request with reason `abort`; nothing happens if it has ended. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._abort, request_id)

    async def drain(self) -> None:
        """Take no more requests, and wait until those that run have ended."""
        self._check_loop()
        self._refusal = self._refusal or "the engine is draining: it finishes what runs"
        while self._readers:
            self._idle.clear()
            await self._idle.wait()

    def snapshot(self) -> dict[str, float]:
        """Every count and value of the moment by its Prometheus name. From any thread."""
        return self._llm.engine.snapshot()

    @property
    def unavailable(self) -> str | None:
        """Why the engine takes no requests, as a sentence; None: it takes them."""
        return self._refusal

    def _check_loop(self) -> None:
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "the engine belongs to another event loop; make one AsyncEngine for each loop, "
                "with an LLM of its own"
            )

    def _check_available(self) -> None:
        if self._refusal is not None:
            raise EngineUnavailableError(self._refusal) from self._failure

    def _register(self, request_id: str) -> Reader:
        self._check_loop()
        self._check_available()
        if request_id in self._readers:
            raise ValueError(
                f"request_id is {request_id!r}, which another request has; give each its own"
            )
        reader = self._readers[request_id] = Reader(request_id)
        return reader

    def _begin(self, reader: Reader, answers: list[Answer]) -> None:
        if self._over.is_set():
            self._check_available()
        reader.open.update(answers)
        self._reader_of.update((answer, reader) for answer in answers)
        self._thread.add(answers)
        if reader.aborted:
            self._thread.abort(answers)

    def _abort(self, request_id: str) -> None:
        reader = self._readers.get(request_id)
        if reader is not None:
            reader.aborted = True
            self._thread.abort(reader.open)

    def _receive(self, deltas: Mapping[Answer, Delta]) -> None:
        for answer, delta in deltas.items():
            reader = self._reader_of.get(answer)
            if reader is not None:  # otherwise nobody reads the answer any more
                self._put(reader, answer, delta)

    def _put(self, reader: Reader, answer: Answer, delta: Delta) -> None:
        reader.put(answer, delta)
        if delta.output is not None:
            del self._reader_of[answer]
            if not reader.open:
                self._remove(reader)

    def _forget(self, reader: Reader) -> None:
        """Nobody reads a request any more: what still runs of it ends."""
        if reader.open:
            self._thread.abort(reader.open, silently=True)
            for answer in reader.open:
                del self._reader_of[answer]
        self._remove(reader)

    def _remove(self, reader: Reader) -> None:
        if self._readers.get(reader.request_id) is reader:
            del self._readers[reader.request_id]
        if not self._readers:
            self._idle.set()

    def _thread_ended(self, failure: Exception | None) -> None:
        """On the thread, as its last act."""
        self._llm.release()
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_all, failure)

    def _end_all(self, failure: Exception | None) -> None:
        """Give everybody who still waits a last delta."""
        reason, sentence = FinishReason.ABORT, "the engine was closed before the request was done"
        if failure is not None:
            _LOG.error("the step loop failed", exc_info=failure)
            reason = FinishReason.ERROR
            sentence = f"the engine has failed ({_described(failure)}); restart it"
            self._failure, self._refusal = failure, sentence
        self._over.set()
        for answer, reader in list(self._reader_of.items()):
            self._put(reader, answer, answer.end(reason, sentence))


def _described(failure: Exception) -> str:
    """An exception in one line."""
    return " ".join(f"{type(failure).__name__}: {failure}".split())[:300]


def _check_fields(params: Any, request_id: Any, priority: Any, deadline: Any, tenant: Any) -> None:
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params is {str(params)[:40]}; it must be SamplingParams")
    if not isinstance(request_id, str | None):
        raise ValueError(f"request_id is {request_id!r}; it must be a text")
    if type(priority) is not int:
        raise ValueError(f"priority is {priority!r}; it must be a whole number")
    if deadline is not None and (
        isinstance(deadline, bool) or not isinstance(deadline, int | float) or math.isnan(deadline)
    ):
        raise ValueError(f"deadline is {deadline!r}; it must be a time of time.monotonic()")
    if not isinstance(tenant, str):
        raise ValueError(f"tenant is {tenant!r}; it must be a text")
