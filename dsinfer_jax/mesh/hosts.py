"""The processes of one run: what they agree on, and how they end together (docs/sharding.md).

All run the same program on the same inputs, one SPMD step after the other. What the host decides
is a function of the requests and of the tokens that came, which are the same everywhere; so nothing
is sent between hosts in a step. What is not such a function is drawn by one process and told to the
others. Whether all decide alike can be checked in every step, by digests of what a step is given.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NoReturn

from dsinfer_jax.mesh.host_watch import HostWatch, Store

LOST = 3  # exit code: another process is lost, or differs
DEFAULT_PEER_SECONDS = 60.0
_MEETINGS = "dsinfer/meeting"
_SHOWN = 40  # characters of a fact in a sentence
_WAIT_SECONDS = 10.0  # of one call; who waits goes on until all are there or the watch ends it
_WORDS_INTERVALS = 3  # signs of life for which the coordinator outlives its last words
_DIGEST_BYTES = 8
_START_SECONDS = 300.0  # processes may start so far apart
_TRY_SECONDS = 1.0


class HostsError(RuntimeError):
    """The processes cannot go on together; one sentence says what differs, or who is missing."""


@dataclass(frozen=True)
class HostOptions:
    """How the processes of a run find each other.

    Attributes:
        coordinator: HOST:PORT of process 0; None: jax finds all three (TPU pods, Slurm, ...).
        count, process: how many processes, and which of them this is.
        peer_seconds: silence after which a process is lost, and the longest time of a step.
        check_digests: compare before each step what the processes are about to run.
    """

    coordinator: str | None = None
    count: int | None = None
    process: int | None = None
    peer_seconds: float = DEFAULT_PEER_SECONDS
    check_digests: bool = False


class Hosts:
    """This process among the others.

    Every method that waits for the others has to be called by all of them, in the same order.

    Args:
        process, count: which of how many this is.
        check_digests: whether `check_step` looks at every step.
        say: where the sentence goes that ends the process.
    """

    def __init__(
        self,
        store: Store,
        process: int,
        count: int,
        *,
        peer_seconds: float = DEFAULT_PEER_SECONDS,
        check_digests: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.process, self.count = process, count
        self._store, self._check_digests, self._say = store, check_digests, say
        self._watch = HostWatch(
            store, process, count, peer_seconds, lambda sentence: self.stop(sentence, LOST)
        )
        self._meetings = self._steps = self._seeds = 0
        self._stopping = threading.Lock()
        self._watch.start()
        self._key = self.gather("the key of the seeds", secrets.token_hex(16))[0]

    @property
    def first(self) -> bool:
        """Whether this is the process that prints."""
        return self.process == 0

    def gather(self, what: str, text: str) -> list[str]:
        """What the processes pass here, in their order.

        Raises:
            HostsError: another one is somewhere else in the program.
        """
        topic, before = f"{_MEETINGS}/{self._meetings}", f"{_MEETINGS}/{self._meetings - 1}"
        self._meetings += 1
        said = json.dumps([what, text])
        if self.first:
            others = [self._wait(f"{topic}/{process}") for process in range(1, self.count)]
            self._store.put(f"{topic}/all", json.dumps([said, *others]))
            self._store.forget(before)  # everybody has read it, for everybody is here
        else:
            self._store.put(f"{topic}/{self.process}", said)
        pairs = [json.loads(one) for one in json.loads(self._wait(f"{topic}/all"))]
        for process, (place, _) in enumerate(pairs):
            if place != pairs[0][0]:
                raise HostsError(
                    f"the processes differ: process 0 is at {pairs[0][0]}, and process {process} "
                    f"at {place}"
                )
        return [text for _, text in pairs]

    def agree(self, what: str, facts: Mapping[str, str]) -> None:
        """Go on only if all processes have the same facts by the same names.

        Raises:
            HostsError: one sentence with the first fact that differs.
        """
        gathered = [json.loads(text) for text in self.gather(what, json.dumps(dict(facts)))]
        for process, other in enumerate(gathered):
            for name in [*gathered[0], *other]:
                mine, theirs = (one.get(name, "absent") for one in (gathered[0], other))
                if mine != theirs:
                    raise HostsError(
                        f"the processes differ at {what}: {name} is {_short(mine)} in process 0 "
                        f"and {_short(theirs)} in process {process}; all of them stop, start them "
                        "with the same options, files and versions"
                    )

    def check_step(self, program: str, parts: Iterable[tuple[str, Any]]) -> None:
        """Compare a step that is about to run, if digests are checked.

        The first step is compared in any case: it waits for who has compiled longest.

        Args:
            program: the name of the compiled step.
            parts: what it is given by the host: names and arrays.

        Raises:
            HostsError: one sentence with the step and what differs.
        """
        self._steps += 1
        if self._steps == 1 or self._check_digests:
            digests = {name: _digest(part) for name, part in parts}
            self.agree(f"step {self._steps}", {"the program": program} | digests)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Ends the process if what is done inside takes too long.

        Raises:
            HostsError: it failed; collectives do when a peer is gone, where they notice.
        """
        try:
            with self._watch.limited(what):
                yield
        except Exception as error:
            line = str(error).partition("\n")[0]
            raise HostsError(
                f"{what} failed, as it does when another process is lost: {line}"
            ) from error

    def fresh_seed(self) -> int:
        """A 64-bit number that was never drawn before; the same in all processes."""
        self._seeds += 1
        text = f"{self._key} {self._seeds}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")

    def leave(self) -> None:
        """The end of the run, for all processes."""
        self.gather("the end", "")
        self._watch.end()

    def stop(self, sentence: str, code: int) -> NoReturn:
        """End this process at once, and let the others know why.

        Nothing that waits for a peer may run any more, so the interpreter is not shut down.
        """
        self._stopping.acquire()  # by the first of two threads; the other one waits for the end
        self._say(f"process {self.process}: {sentence}")
        self._watch.last_words(sentence)
        if self.first:  # the store ends with it
            threading.Event().wait(_WORDS_INTERVALS * self._watch.interval)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                continue  # its reader is gone
        os._exit(code)

    def _wait(self, key: str) -> str:
        while (text := self._store.wait(key, _WAIT_SECONDS)) is None:
            continue
        return text


def join(options: HostOptions, say: Callable[[str], None]) -> Hosts:
    """Find the other processes. To be called before jax sees a device.

    Args:
        say: where the sentence goes that ends this process if another one is lost.

    Raises:
        HostsError: they were not found, in one sentence.
    """
    from dsinfer_jax import _jax

    if options.coordinator is not None and options.process != 0:
        _wait_for(options.coordinator)
    try:
        joined = _jax.join_processes(
            options.coordinator, options.count, options.process, int(options.peer_seconds)
        )
    except ConnectionError as error:
        where = options.coordinator or "the coordinator that the cluster names"
        raise HostsError(
            f"the other processes were not found through {where} ({error}); start all of them, "
            "with the same address, and let it be reachable"
        ) from None
    except ValueError as error:
        raise HostsError(
            f"jax found no cluster here ({error}); name --coordinator, --num-processes and "
            "--process-id"
        ) from None
    return Hosts(
        *joined, peer_seconds=options.peer_seconds, check_digests=options.check_digests, say=say
    )


def _wait_for(address: str) -> None:
    """Wait until the coordinator listens, because jax aborts the process if it does not."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection((host, int(port)), _TRY_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise HostsError(
                    f"nothing listens at {address}, the coordinator, after {_START_SECONDS:g} s "
                    f"({error.strerror or error}); start process 0 there, with the same address"
                ) from None
            time.sleep(_TRY_SECONDS)


def _digest(part: Any) -> str:
    content = f"{part.dtype} {part.shape}".encode() + part.tobytes()
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def _short(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}... (digest {blake2b(text.encode(), digest_size=4).hexdigest()})"
