"""Grammars made ready off the step loop: tried in a worker process, then cached (engine.md 6.2).

A grammar is first built in a worker under limits of time and memory. Only one that passed is built
in this process, in a thread and without holding the interpreter's lock.
"""

import base64
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.grammar import (
    NICENESS,
    Matcher,
    Vocabulary,
    native_matcher,
    regex_grammar,
)
from dsinfer_jax.engine.grammar_text import json_grammar
from dsinfer_jax.engine.structured_output import GrammarError, StructuredOutput
from dsinfer_jax.engine.tool_grammar import tool_grammar

_POLL_SECONDS = 0.05
_START_SECONDS = 60.0
_MARKER = "｜DSML｜"
_ANY_OBJECT = '{"type": "object"}'


class GrammarCompiler:
    """Turns constraints into matchers.

    Args:
        vocabulary: of the model.
        marker: id of the marker token of tool calls; None: the vocabulary has none.
        seconds: longest time for one grammar.
        memory_bytes: most memory for one grammar.
        kept: grammars in the cache.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        marker: int | None,
        *,
        seconds: float = 20.0,
        memory_bytes: int = 1 << 30,
        kept: int = 256,
    ) -> None:
        self._vocabulary, self._marker = vocabulary, marker
        self._seconds, self._kept = seconds, kept
        # as many threads as workers
        self._thread = ThreadPoolExecutor(1, "grammar", initializer=_give_way)
        self._worker = _Worker(vocabulary, memory_bytes)
        self._cache: OrderedDict[str, Any] = OrderedDict()
        weakref.finalize(self, self._worker.stop)

    def submit(self, output: StructuredOutput) -> "Compilation":
        """Start to make a constraint ready."""
        given_up = threading.Event()
        future = self._thread.submit(self._compile, output, given_up)
        return Compilation(future, given_up)

    def close(self) -> None:
        """End the worker; what is under way fails."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._worker.stop()

    def _compile(self, output: StructuredOutput, given_up: threading.Event) -> Matcher:
        grammar = self._grammar(output)
        native = self._cache.get(grammar)
        if native is None:
            self._worker.check(grammar, self._seconds, given_up)
            native = native_matcher(self._vocabulary, grammar)
            self._cache[grammar] = native
            if len(self._cache) > self._kept:
                self._cache.popitem(last=False)
        self._cache.move_to_end(grammar)
        return Matcher(native.deep_copy(), output.trigger_token_ids, self._vocabulary.ends)

    def _grammar(self, output: StructuredOutput) -> str:
        if output.kind == "tool_calls":
            if self._marker is None:
                raise GrammarError("tool calls need a marker token, which the tokenizer lacks")
            return tool_grammar(output.source, self._marker, output.after_marker)
        if output.kind == "regex":
            return regex_grammar(output.source)
        if output.kind == "lark":
            return output.source
        return json_grammar(output.source or _ANY_OBJECT)


def compiler_for(codec: TextCodec, vocab_size: int, ends: Sequence[int]) -> GrammarCompiler:
    """A compiler for a model's tokenizer; ids beyond its words are never allowed."""
    tokens = [codec.token_bytes(token) for token in range(vocab_size)]
    control = codec.control_tokens
    vocabulary = Vocabulary(tokens, sorted(control.values()), ends)
    return GrammarCompiler(vocabulary, control.get(_MARKER))


class Compilation:
    """A constraint that is being made ready."""

    def __init__(self, future: Future[Matcher], given_up: threading.Event) -> None:
        self._future, self._given_up = future, given_up

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> Matcher:
        """Wait for the matcher. Raises GrammarError if it cannot be had."""
        return self._future.result()

    def cancel(self) -> None:
        """Stop work on it."""
        self._given_up.set()
        self._future.cancel()


class _Worker:
    """One process; used by one thread at a time, started when needed."""

    def __init__(self, vocabulary: Vocabulary, memory_bytes: int) -> None:
        self._greeting = {
            "tokens": [base64.b64encode(token).decode() for token in vocabulary.tokens],
            "control": vocabulary.control,
            "ends": vocabulary.ends,
            "memory_bytes": memory_bytes,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: str, seconds: float, given_up: threading.Event) -> None:
        """Raises GrammarError if the grammar is refused, takes too long, or is given up."""
        if self._process is None:
            self._start(given_up)
        error = self._ask(grammar, seconds, given_up)
        if error is not None:
            raise GrammarError(error)

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start(self, given_up: threading.Event) -> None:
        command = [sys.executable, "-m", "dsinfer_jax.engine.grammar_worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is for the engine, which ends it
        )  # fmt: skip
        self._ask(self._greeting, _START_SECONDS, given_up)

    def _ask(self, question: Any, seconds: float, given_up: threading.Event) -> str | None:
        """Write a line and wait for the answer; the process is ended if none comes."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            line = _line_before(process.stdout.fileno(), seconds, given_up)
        except (BrokenPipeError, EOFError) as error:
            self.stop()
            raise GrammarError(
                "the grammar took more memory than it may; make it smaller"
            ) from error
        except TimeoutError as error:
            self.stop()
            raise GrammarError(
                f"the grammar was not ready after {seconds:g} s; make it smaller"
            ) from error
        answer: str | None = json.loads(line)
        return answer


def _give_way() -> None:
    """Lower the priority of the calling thread; Linux counts threads apart."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _line_before(descriptor: int, seconds: float, given_up: threading.Event) -> bytes:
    """Raises TimeoutError, also if it is given up, and EOFError."""
    end, line = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if time.monotonic() > end or given_up.is_set():
                raise TimeoutError
            if selector.select(min(_POLL_SECONDS, end - time.monotonic())):
                piece = os.read(descriptor, 1 << 16)
                if not piece:
                    raise EOFError
                line += piece
    return line
