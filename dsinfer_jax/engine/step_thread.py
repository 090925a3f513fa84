"""The thread on which an engine makes its steps while an event loop serves callers.

Everything that touches the engine happens here, between steps, in the order in which it was asked
for. Without requests the thread sleeps until somebody asks for something.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from dsinfer_jax.engine.answers import Answer, RunningAnswers
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import Delta, FinishReason

_ABORTED = "the request was aborted by the caller"


class StepThread:
    """Runs an engine until `stop` or until a step fails.

    Args:
        engine: used by nobody else while the thread runs.
        deliver: called with the deltas of each step, on this thread.
        ended: called once at the end, on this thread, with the exception that ended it or None.
    """

    def __init__(
        self,
        engine: LLMEngine,
        deliver: Callable[[Iterable[tuple[Answer, Delta]]], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self._engine, self._deliver, self._ended = engine, deliver, ended
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running = RunningAnswers(engine)
        self._stopping = False
        # a program that is left without closing its engine must not hang
        self._thread = threading.Thread(target=self._main, name="engine steps", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread; `ended` was called before."""
        self._thread.join()

    def add(self, answers: Sequence[Answer]) -> None:
        """Queue the requests of answers."""
        self._commands.put(partial(self._add, answers))

    def abort(self, answers: Iterable[Answer], silently: bool = False) -> None:
        """End answers before the next step, with last deltas or without a word."""
        self._commands.put(partial(self._abort, tuple(answers), silently))

    def stop(self) -> None:
        """End all that runs, without a word, and then the thread."""
        self._commands.put(self._stop)

    def _main(self) -> None:
        failure = None
        try:
            while not self._stopping:
                self._take_commands()
                if self._engine.has_unfinished_requests():
                    self._deliver(self._running.complete(self._engine.step()))
        except Exception as error:
            failure = error
            with suppress(Exception):  # the engine may be broken; free what it still can
                self._running.abort(list(self._running))
        self._ended(failure)

    def _take_commands(self) -> None:
        """Do what was asked for; wait for it if there is nothing else to do."""
        if not self._engine.has_unfinished_requests():
            self._engine.flush()  # of ended requests only
            self._commands.get()()
        while not self._stopping:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command()

    def _add(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._deliver(self._running.add(answer))

    def _abort(self, answers: Sequence[Answer], silently: bool) -> None:
        aborted = self._running.abort(answers)
        if not silently:
            self._deliver([(one, one.end(FinishReason.ABORT, _ABORTED)) for one in aborted])

    def _stop(self) -> None:
        self._running.abort(list(self._running))
        self._engine.flush()
        self._stopping = True
