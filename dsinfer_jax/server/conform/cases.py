"""The set of cases. Each asks a server something and raises Violation where a law is broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from dsinfer_jax.server.conform import chat_laws
from dsinfer_jax.server.conform.client import Target, Violation
from dsinfer_jax.server.conform.error_laws import check_error, refused
from dsinfer_jax.server.conform.outcome import Expectation, Outcome, check_outcome, law
from dsinfer_jax.server.conform.speakers import (
    CHAT,
    MESSAGES,
    RESPONSES,
    SPEAKERS,
    TOOL_NAME,
    Question,
    Speaker,
)

LONG_TEXT = "The harbour lies in the morning sun and the boats go out. " * 40
NO_ANSWER, TRIES = 502, 3  # noise may begin with its end; hardly ever three times in a row
CONTROL_TOKEN = re.compile("<｜[^｜]*｜>")  # noise has such; stop sequences do not look into them
USE_TOOL = f"Please call {TOOL_NAME} for Zürich, 3 days."


class Skipped(Exception):  # noqa: N818 - a result, not an error
    """A case that cannot be judged at this server, with the reason."""


class Questioner:
    """Asks a server in one dialect and checks the laws that hold for every answer."""

    def __init__(self, target: Target, speaker: Speaker, model: str, expected: Expectation) -> None:
        self.target = target
        self.speaker = speaker
        self.model = model
        self.expected = expected

    def write(self, question: Question) -> dict[str, Any]:
        """The body of a question."""
        limit = self.expected.limit if question.limit is None else question.limit
        return self.speaker.write(replace(question, limit=limit), self.model)

    def ask(self, question: Question) -> Outcome:
        """The answer to a question. Raises Violation."""
        body = self.write(question)
        for _ in range(1 if self.expected.sense else TRIES):
            reply = self.target.ask("POST", self.speaker.path, body)
            if reply.status != NO_ANSWER:
                break
        if reply.status != 200:
            raise refused(self.speaker, reply)
        law(reply.is_stream == question.stream, "what came is no stream, or one nobody wanted")
        outcome = self.speaker.read(reply)
        self.check(outcome)
        return outcome

    def check(self, outcome: Outcome) -> None:
        """The laws of every answer."""
        check_outcome(outcome, self.expected)

    def sense(self, holds: bool, sentence: str) -> None:
        """A law that needs a model whose text makes sense."""
        law(holds or not self.expected.sense, sentence)

    def whole(self, outcome: Outcome) -> Outcome:
        """An answer that must not be cut off; a model that writes noise may do so."""
        if not self.expected.sense:
            if outcome.finish == "length":
                raise Skipped("the model did not come to an end")
            if outcome.reasoning and not outcome.text and not outcome.calls:
                raise Skipped("the model ended while it thought")
        return outcome

    def refuse(self, body: Any, *, status: int = 400) -> None:
        """Send something that must be refused."""
        reply = self.target.ask("POST", self.speaker.path, body)
        check_error(self.speaker, reply)
        law(reply.status == status, f"the status is {reply.status}, not {status}")


def plain(run: Questioner) -> None:
    run.sense(bool(run.ask(Question()).text), "the answer has no text")


def streamed(run: Questioner) -> None:
    outcome = run.ask(Question(stream=True))
    run.sense(bool(outcome.text), "the answer has no text")
    whole = run.ask(Question())
    law(outcome.usage is not None and whole.usage is not None
        and outcome.usage.prompt == whole.usage.prompt,
        "a streamed prompt has another length than one that is not")  # fmt: skip


def thinking(run: Questioner) -> None:
    for stream in (False, True):
        outcome = run.ask(Question(thinking=True, stream=stream))
        run.sense(bool(outcome.reasoning), "thinking is on and there is no reasoning")
        run.sense(bool(outcome.text), "thinking ended without an answer")
        usage = outcome.usage
        law(usage is None or usage.reasoning is None or usage.reasoning > 0,
            "there is reasoning, and its token count is 0")  # fmt: skip


def not_thinking(run: Questioner) -> None:
    outcome = run.ask(Question(thinking=False, stream=True))
    law(not outcome.reasoning, "thinking is off and there is reasoning")
    run.sense(bool(outcome.text), "the answer has no text")


def tools(run: Questioner) -> None:
    """A call, its result, an answer; whole and streamed."""
    asked = Question(USE_TOOL, tool=True, must_call=True, thinking=False)
    for stream in (False, True):
        outcome = run.whole(run.ask(replace(asked, stream=stream)))
        if not outcome.calls and run.speaker is MESSAGES:
            raise Skipped("the model did not call the tool")
        law(bool(outcome.calls), "a call was required and there is none")
        law(outcome.calls[0].name == TOOL_NAME, f"the tool {outcome.calls[0].name!r} was called")
        run.ask(replace(asked, stream=stream, must_call=False, answered=outcome))


def tools_while_thinking(run: Questioner) -> None:
    for stream in (False, True):
        outcome = run.ask(Question(USE_TOOL, tool=True, thinking=True, stream=stream))
        if not outcome.calls:
            raise Skipped("the model did not call the tool")


def limit(run: Questioner) -> None:
    for stream in (False, True):
        outcome = run.ask(Question(limit=3, stream=stream))
        cut = outcome.finish == "length"
        run.sense(cut, f"3 tokens were allowed; the finish is {outcome.finish!r}")
        law(outcome.usage is not None and outcome.usage.output <= 3,
            f"3 tokens were allowed; {outcome.usage and outcome.usage.output} came")  # fmt: skip


def stop(run: Questioner) -> None:
    if run.speaker is RESPONSES:
        raise Skipped("the dialect has no stop sequences")
    outcome = run.ask(Question(stop="e", thinking=False, stream=True))
    text = outcome.text if run.expected.sense else CONTROL_TOKEN.sub("", outcome.text)
    law("e" not in text, "the answer goes on after its stop sequence")


def structured(run: Questioner) -> None:
    if run.speaker is MESSAGES:
        raise Skipped("the dialect has no response format")
    for thinking, stream in product((False, None), (False, True)):
        asked = Question("A city as JSON.", json=True, thinking=thinking, stream=stream)
        outcome = run.whole(run.ask(asked))
        try:
            value = json.loads(outcome.text)
        except ValueError:
            raise Violation(f"the answer is not JSON: {outcome.text[:80]!r}") from None
        fits = (
            isinstance(value, dict)
            and isinstance(value.get("name"), str)
            and isinstance(value.get("people"), int)
        )
        law(fits, f"the answer does not fit its schema: {outcome.text[:80]!r}")


def cache(run: Questioner) -> None:
    """A long prompt that was just read is cached the next time."""
    question = Question(f"{run.speaker.name}: {LONG_TEXT}", stream=True, limit=4)
    run.ask(question)
    usage = run.ask(question).usage
    law(usage is not None and usage.cached > 0,
        "a prompt was sent twice and nothing of it was cached")  # fmt: skip


def choices(run: Questioner) -> None:
    if run.speaker is not CHAT:
        raise Skipped("the dialect has one answer only")
    for stream in (False, True):
        body = run.write(Question(stream=stream, more={"n": 2}))
        reply = run.target.ask("POST", CHAT.path, body)
        if reply.status == 400:
            check_error(CHAT, reply)
            raise Skipped("the server gives one answer only")
        if reply.status != 200:
            raise refused(CHAT, reply)
        read = chat_laws.read_stream(reply.events) if stream else chat_laws.read_body(reply.json())
        law(len(read) == 2, f"2 answers were asked for; {len(read)} came")
        for outcome in read:
            run.check(outcome)


def log_probabilities(run: Questioner) -> None:
    if run.speaker is not CHAT:
        raise Skipped("asked in chat only")
    more = {"logprobs": True, "top_logprobs": 2}
    body = run.write(Question(thinking=False, more=more))
    reply = run.target.ask("POST", CHAT.path, body)
    if reply.status != 200:
        raise refused(CHAT, reply)
    choice = reply.json()["choices"][0]
    entries = (choice["logprobs"] or {}).get("content") or []
    law(bool(entries), "log probabilities were asked for and none came")
    for entry in entries:
        law(entry["logprob"] <= 0, f"a log probability is {entry['logprob']}")
        law(len(entry["top_logprobs"]) == 2, "2 alternatives were asked for")
    joined = b"".join(bytes(entry["bytes"]) for entry in entries)
    text = choice["message"]["content"].encode()
    run.sense(text in joined, "the bytes of the log probabilities are not those of the text")


def stored(run: Questioner) -> None:
    if run.speaker is not RESPONSES:
        raise Skipped("the dialect keeps nothing")
    first = run.ask(Question())
    reply = run.target.ask("GET", f"{RESPONSES.path}/{first.id}")
    if reply.status != 200:
        check_error(RESPONSES, reply)
        raise Skipped("the server keeps no responses")
    law(reply.json()["id"] == first.id, "another response came back")
    second = run.ask(Question("And again.", more={"previous_response_id": first.id}))
    law(second.usage is not None and first.usage is not None
        and second.usage.prompt > first.usage.prompt,
        "the earlier response is no part of the prompt")  # fmt: skip
    law(run.target.ask("DELETE", f"{RESPONSES.path}/{first.id}").status == 200, "no deletion")
    gone = run.target.ask("GET", f"{RESPONSES.path}/{first.id}")
    check_error(RESPONSES, gone)
    law(gone.status == 404, f"a deleted response has the status {gone.status}")


def counting(run: Questioner) -> None:
    if run.speaker is not MESSAGES:
        raise Skipped("the dialect does not count")
    body = run.write(Question())
    counted = run.target.ask("POST", f"{MESSAGES.path}/count_tokens", body)
    if counted.status != 200:
        raise refused(MESSAGES, counted)
    usage = run.ask(Question()).usage
    law(usage is not None and counted.json()["input_tokens"] == usage.prompt,
        f"counted {counted.json()}, used {usage}")  # fmt: skip


def bad_requests(run: Questioner) -> None:
    good = run.write(Question())
    for body in (b"{", b"", b"\xff\xfe", b"[]", b"7", b"{}"):
        run.refuse(body)
    run.refuse({**good, "stream": "yes"})
    run.refuse({**good, "temperature": 7})
    run.refuse({**good, "model": 7})


def unknown_model(run: Questioner) -> None:
    body = {**run.write(Question(stream=True)), "model": "no-such-model"}
    reply = run.target.ask("POST", run.speaker.path, body)
    check_error(run.speaker, reply)
    law(reply.status in (400, 404), f"an unknown model has the status {reply.status}")


def leaving(run: Questioner) -> None:
    """Clients that leave in the middle; afterwards the server still answers."""
    for _ in range(5):
        run.target.begin(run.speaker.path, run.write(Question(stream=True)))
    run.ask(Question())


CASES: tuple[Callable[[Questioner], None], ...] = (
    plain,
    streamed,
    thinking,
    not_thinking,
    tools,
    tools_while_thinking,
    limit,
    stop,
    structured,
    cache,
    choices,
    log_probabilities,
    stored,
    counting,
    bad_requests,
    unknown_model,
    leaving,
)


def same_prompt_in_all_dialects(target: Target, model: str, expected: Expectation) -> None:
    """The same question makes a prompt of the same length, and cached tokens mean the same."""
    lengths = {}
    for speaker in SPEAKERS:
        usage = Questioner(target, speaker, model, expected).ask(Question(limit=4)).usage
        assert usage is not None  # a law of every answer
        lengths[speaker.name] = usage.prompt
    law(len(set(lengths.values())) == 1, f"one question has prompts of several lengths: {lengths}")
