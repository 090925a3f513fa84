"""A server around a model, in the test process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from live import ENDING, MODEL, Live, running

from dsinfer_jax.recipe import Tokenizer
from dsinfer_jax.server import ServerSettings
from dsinfer_jax.server.conform.client import Reply, Target
from dsinfer_jax.server.conform.error_laws import refused
from dsinfer_jax.server.conform.outcome import Outcome
from dsinfer_jax.server.conform.speakers import SPEAKERS, Question, Speaker

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm import LLM

GREEDY = {"temperature": 0}
SPEAKER = {speaker.name: speaker for speaker in SPEAKERS}


@dataclass
class Served:
    """A server with its model."""

    live: Live
    llm: LLM
    tokenizer: Tokenizer

    def send(self, dialect: str, question: Question) -> Reply:
        speaker = SPEAKER[dialect]
        return self.target.ask("POST", speaker.path, body_of(speaker, question))

    def ask(self, dialect: str, question: Question) -> Outcome:
        """The answer, read strictly. Raises Violation."""
        reply = self.send(dialect, question)
        if reply.status != 200:
            raise refused(SPEAKER[dialect], reply)
        return SPEAKER[dialect].read(reply)

    @property
    def target(self) -> Target:
        return Target(self.live.url, {}, 60.0)

    def counts(self) -> dict[str, float]:
        return self.llm.engine.snapshot()

    def busy(self) -> int:
        """Requests that run or wait in the engine."""
        counts = self.counts()
        return round(counts["dsinfer_requests_running"] + counts["dsinfer_requests_waiting"])


def body_of(speaker: Speaker, question: Question) -> dict[str, Any]:
    """The body of a question that does not think unless it says so."""
    thinking = False if question.thinking is None else question.thinking
    limit = 16 if question.limit is None else question.limit
    return speaker.write(replace(question, thinking=thinking, limit=limit), MODEL)


@contextmanager
def serving(llm: LLM, **settings: Any) -> Iterator[Served]:
    """Serve a model; afterwards others may have it."""
    from dsinfer_jax.server.engine_app import create_engine_app, read_tokenizer

    assert llm.codec is not None
    tokenizer = read_tokenizer(llm.codec.path)
    app = create_engine_app(llm, tokenizer, ServerSettings(**settings))
    try:
        with running(app) as live:
            yield Served(live, llm, tokenizer)
    finally:
        ENDING[-1].join(30)
        assert not ENDING[-1].is_alive(), "the server did not end"
    llm.claim()
    llm.release()
