"""Notices that another process of the run is lost, and says so in bounded time.

Two threads. One tells the others that this process lives and reads what they tell, through the
store of the coordinator. The other one looks at the clock, because the first may hang with a
coordinator that is stopped, and the main thread with a step that needs a peer.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

_FOLDER = "dsinfer/alive"
_LAST_WORDS = "!"  # before a sentence, in place of a count
_LONGEST_INTERVAL = 1.0  # seconds between two signs of life
_INTERVALS = 10  # signs of life in the time after which a process is lost


class Store(Protocol):
    """Texts by key that all processes see. Every method raises ConnectionError when the process
    that keeps them does not answer."""

    def put(self, key: str, text: str) -> None:
        """Set a text, new or again."""

    def wait(self, key: str, seconds: float) -> str | None:
        """A text as soon as it is there; None if it is not by then."""

    def folder(self, key: str) -> Mapping[str, str]:
        """The texts whose keys are `key`/name, by name."""

    def forget(self, key: str) -> None:
        """Delete all texts of a folder."""


class HostWatch:
    """Watches the other processes.

    Args:
        process, count: which of how many this is.
        seconds: silence after which a process is lost, and the longest time of a step.
        lost: called once, on a thread of the watch, with a sentence.
    """

    def __init__(
        self,
        store: Store,
        process: int,
        count: int,
        seconds: float,
        lost: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._process, self._seconds = store, process, seconds
        self._lost, self._clock = lost, clock
        self._signs: dict[int, str] = dict.fromkeys(set(range(count)) - {process}, "")
        self._heard = dict.fromkeys(self._signs, clock())  # when a sign last changed
        self._answered = clock()  # when the store last did
        self._count = 0
        self._step: tuple[str, float] | None = None  # what is waited for, and since when
        self._ended = threading.Event()

    @property
    def interval(self) -> float:
        """Seconds between two signs of life."""
        return min(self._seconds / _INTERVALS, _LONGEST_INTERVAL)

    def start(self) -> None:
        for work in (self.beat, self._look):
            threading.Thread(target=self._repeat, args=(work,), daemon=True).start()

    def end(self) -> None:
        """Watch no longer."""
        self._ended.set()

    @contextmanager
    def limited(self, what: str) -> Iterator[None]:
        """What is done inside may take `seconds`."""
        self._step = what, self._clock()
        try:
            yield
        finally:
            self._step = None

    def last_words(self, sentence: str) -> None:
        """Tell the others why this process ends; gives up when the store does not answer."""
        self.end()
        key, text = f"{_FOLDER}/{self._process}", _LAST_WORDS + sentence
        teller = threading.Thread(target=self._tell, args=(key, text), daemon=True)
        teller.start()
        teller.join(_LONGEST_INTERVAL)

    def beat(self) -> None:
        """Give a sign of life, and read those of the others."""
        self._count += 1
        try:
            self._store.put(f"{_FOLDER}/{self._process}", str(self._count))
            found = self._store.folder(_FOLDER)
        except ConnectionError:
            return  # `complaint` has the time since it answered
        self._answered = now = self._clock()
        for process, before in self._signs.items():
            sign = found.get(str(process), before)
            if sign != before:
                self._signs[process], self._heard[process] = sign, now

    def complaint(self) -> str | None:
        """Why the run cannot go on, if it cannot."""
        now, limit = self._clock(), self._seconds
        for process, sign in self._signs.items():
            if sign.startswith(_LAST_WORDS):
                return f"process {process} has stopped: {sign.removeprefix(_LAST_WORDS)}"
        if now - self._answered > limit:
            return f"process 0, the coordinator, has not answered for {limit:g} s"
        for process, heard in self._heard.items():
            if now - heard > limit:
                return (
                    f"process {process} has given no sign of life for {limit:g} s; it has died, is "
                    "stopped, or cannot be reached"
                )
        step = self._step
        if step is not None and now - step[1] > limit:
            return (
                f"{step[0]} has not ended after {limit:g} s, though every process is alive; one of "
                "them is stuck, or needs a longer --peer-timeout"
            )
        return None

    def _look(self) -> None:
        sentence = self.complaint()
        if sentence is not None and not self._ended.is_set():
            self.end()
            self._lost(sentence)

    def _tell(self, key: str, text: str) -> None:
        try:
            self._store.put(key, text)
        except ConnectionError:
            return  # nobody is left to read it

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._ended.is_set():
            work()
            self._ended.wait(self.interval)
