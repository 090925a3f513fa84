"""What clients of a served model get, in all dialects."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from engine_server import GREEDY, SPEAKER, Served, body_of, serving
from live import until

from dsinfer_jax.server.conform.client import Violation
from dsinfer_jax.server.conform.command import conform
from dsinfer_jax.server.conform.error_laws import check_error
from dsinfer_jax.server.conform.outcome import Outcome, Usage
from dsinfer_jax.server.conform.speakers import Question

LONG = "The harbour lies in the morning sun and the boats go out. " * 40
CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Zürich", "北京"]},
        "days": {"enum": [1, 2, 3]},
        "snow": {"type": "boolean"},
    },
    "required": ["city", "days", "snow"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def served(noise_llm: Any) -> Iterator[Served]:
    with serving(noise_llm) as served:
        yield served


def test_an_answer_is_the_same_whole_streamed_and_in_every_dialect(served: Served) -> None:
    outcomes: list[Outcome] = [
        served.ask(dialect, Question("Tell me of the sea.", stream=stream, more=GREEDY))
        for dialect in SPEAKER
        for stream in (False, True)
    ]
    assert outcomes[0].text
    for outcome in outcomes[1:]:
        assert (outcome.text, outcome.finish) == (outcomes[0].text, outcomes[0].finish)


def test_thinking(served: Served) -> None:
    outcome = served.ask("chat", Question("Think.", thinking=True, stream=True, more={"seed": 3}))
    assert outcome.reasoning
    assert not outcome.text


def test_cached_tokens_are_the_same_in_every_dialect(served: Served) -> None:
    """The one prompt of all dialects is computed once, then found."""
    question = Question(f"Of caches: {LONG}", limit=2)
    before = served.counts()["dsinfer_cached_tokens_total"]
    first = served.ask("chat", question).usage
    usages: list[Usage | None] = [
        served.ask(dialect, Question(question.text, stream=stream, limit=2)).usage
        for dialect in SPEAKER
        for stream in (False, True)
    ]
    after = served.counts()["dsinfer_cached_tokens_total"]
    assert first is not None
    assert first.cached == 0
    counted = {(usage.prompt, usage.cached) for usage in usages if usage is not None}
    ((prompt, cached),) = counted
    assert prompt == first.prompt
    assert 0 < prompt - cached <= 128 + 70  # a block that is not whole, and what is computed again
    assert after - before == len(usages) * cached


def test_several_answers_have_seeds_of_their_own(served: Served) -> None:
    def contents(**more: Any) -> list[str]:
        body = Question("Roll the dice.", more={"temperature": 2, "seed": 5, **more})
        choices = served.send("chat", body).json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(len(choices)))
        return [choice["message"]["content"] for choice in choices]

    three = contents(n=3)
    assert len(set(three)) == 3
    assert contents(n=3) == three
    assert contents() == three[:1]


def test_log_probabilities(served: Served) -> None:
    more = {**GREEDY, "logprobs": True, "top_logprobs": 3}
    body = served.send("chat", Question("Probably.", more=more)).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"] > 0
    for entry in entries:
        likely = [top["logprob"] for top in entry["top_logprobs"]]
        assert likely == sorted(likely, reverse=True)
        assert entry["logprob"] == likely[0]  # greedy
        assert sum(map(math.exp, likely)) <= 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", SPEAKER)
def test_more_than_the_context_holds_is_refused(served: Served, dialect: str, stream: bool) -> None:
    for question in (Question("word " * 6_000), Question("Hi.", limit=5_000)):
        reply = served.send(dialect, Question(question.text, stream=stream, limit=question.limit))
        assert reply.status == 400
        assert "maximum context length is 4096" in check_error(SPEAKER[dialect], reply)


def format_of(dialect: str, schema: dict[str, Any]) -> dict[str, Any]:
    named = {"name": "city", "schema": schema}
    if dialect == "chat":
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"text": {"format": {"type": "json_schema", **named}}}


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_structured_output_fits(served: Served, dialect: str) -> None:
    pytest.importorskip("llguidance")
    for stream in (False, True):
        more = {**format_of(dialect, CITY), **GREEDY}
        outcome = served.ask(dialect, Question("Where?", stream=stream, limit=600, more=more))
        assert outcome.finish == "stop"
        assert_fits(outcome.text)


@pytest.mark.parametrize(
    ("dialect", "stream"), [("chat", False), ("responses", True), ("messages", True)]
)
def test_a_tool_that_must_be_called_is_called(served: Served, dialect: str, stream: bool) -> None:
    pytest.importorskip("llguidance")
    flat = {"name": "weather", "parameters": CITY}
    wanted: dict[str, Any] = {
        "chat": {"tools": [{"type": "function", "function": flat}], "tool_choice": "required"},
        "responses": {"tools": [{"type": "function", **flat}], "tool_choice": "required"},
        "messages": {
            "tools": [{"name": "weather", "input_schema": CITY}],
            "tool_choice": {"type": "tool", "name": "weather"},
        },
    }
    more = {**wanted[dialect], **GREEDY}
    outcome = served.ask(dialect, Question("Where?", stream=stream, limit=250, more=more))
    if outcome.finish == "length":  # noise may call it for ever
        outcome.calls.pop()
    else:
        assert outcome.finish == "tool_calls"
    assert outcome.calls
    for call in outcome.calls:
        assert call.name == "weather"
        assert_fits(call.arguments)


def assert_fits(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"city", "days", "snow"}
    assert value["city"] in ("Bern", "Zürich", "北京")
    assert value["days"] in (1, 2, 3)
    assert isinstance(value["snow"], bool)


def test_a_schema_that_cannot_be_enforced_is_refused(served: Served) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}}
    reply = served.send("chat", Question("Where?", more=format_of("chat", schema)))
    assert reply.status == 400
    assert check_error(SPEAKER["chat"], reply)


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("dialect", SPEAKER)
def test_a_client_that_leaves_frees_its_place(served: Served, dialect: str) -> None:
    """Long before its answer would have been done."""
    question = Question("Go on.", stream=True, limit=3_000)

    def steps() -> float:
        return served.counts()['dsinfer_steps_total{kind="decode"}']

    before = steps()
    speaker = SPEAKER[dialect]
    connection = served.live.connection()
    connection.request("POST", speaker.path, json.dumps(body_of(speaker, question)))
    response = connection.getresponse()
    while steps() < before + 5:
        assert response.readline(), "the answer has ended"
    assert served.busy() == 1
    response.close()
    connection.close()
    left = steps()
    until(lambda: served.busy() == 0, seconds=5)
    assert steps() - left <= 5, f"{steps() - left:.0f} steps were made for a client that has left"


@pytest.mark.usefixtures("endless")
def test_the_laws_hold(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    code = conform([served.live.url, "--noise", "--max-tokens", "8"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    for dialect in SPEAKER:
        assert f"ok   {dialect} cache" in printed
    until(lambda: served.busy() == 0)


def test_noise_is_read_strictly(served: Served) -> None:
    """The checks of this module can fail."""
    with pytest.raises(Violation):
        served.ask("chat", Question(limit=5_000))
