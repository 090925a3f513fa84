"""The official Anthropic SDK against the mock, untouched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import RawMessageStreamEvent
from live import MODEL, Live
from pydantic import TypeAdapter

TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
QUESTION = "Please use get_weather for 北京."


@pytest.fixture(scope="module")
def client(mock: Live) -> Iterator[Anthropic]:
    with Anthropic(base_url=mock.url, api_key="any", max_retries=0) as made:
        yield made


def ask(client: Anthropic, text: str = "Hi.", **fields: Any) -> Any:
    fields.setdefault("messages", [{"role": "user", "content": text}])
    return client.messages.create(model=MODEL, max_tokens=1_000, **fields)


def test_models(client: Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).display_name == MODEL


def test_plain_with_thinking(client: Anthropic) -> None:
    answer = ask(client, "Grüße, 世界")
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[0].thinking
    assert answer.content[0].signature
    assert answer.content[1].text == "Grüße, 世界"
    assert answer.stop_reason == "end_turn"
    assert answer._request_id.startswith("req_")


def test_without_thinking(client: Anthropic) -> None:
    answer = ask(client, thinking={"type": "disabled"})
    assert [block.type for block in answer.content] == ["text"]


@pytest.mark.parametrize("text", ["Grüße, 世界", QUESTION])
def test_the_stream_helper_adds_up(client: Anthropic, text: str) -> None:
    messages: Any = [{"role": "user", "content": text}]
    with client.messages.stream(
        model=MODEL, max_tokens=1_000, messages=messages, tools=[TOOL]
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert "thinking" in kinds
    whole = ask(client, text, tools=[TOOL])
    assert [block.type for block in final.content] == [block.type for block in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens
    if text == QUESTION:
        assert final.content[-1].input == whole.content[-1].input
        assert final.stop_reason == "tool_use"


def test_every_event_is_of_its_type(client: Anthropic) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for event in ask(client, QUESTION, tools=[TOOL], stream=True):
        adapter.validate_python(event.model_dump(warnings=False))


def test_tools_over_several_turns(client: Anthropic) -> None:
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        answer = ask(client, messages=history, tools=[TOOL])
        assert answer.stop_reason == "tool_use"
        history.append({"role": "assistant", "content": answer.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "21°"}
            for block in answer.content
            if block.type == "tool_use"
        ]
        history.append({"role": "user", "content": results})
        answer = ask(client, messages=history, tools=[TOOL])
        assert answer.stop_reason == "end_turn"
        assert answer.content[-1].text == "21°"
        history.append({"role": "assistant", "content": answer.content})
        history.append({"role": "user", "content": "And get_weather again."})


def test_counting_tokens(client: Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "Count me."}]
    counted = client.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    usage = ask(client, "Count me.").usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_cache_reads_are_reported_in_the_first_event(client: Anthropic) -> None:
    text = "A long text that is new. " * 40
    assert ask(client, text).usage.cache_read_input_tokens < 100
    events = list(ask(client, text, stream=True))
    assert events[0].message.usage.cache_read_input_tokens > 100
    assert events[-2].usage.cache_read_input_tokens > 100


def test_stop_sequences_and_limits(client: Anthropic) -> None:
    stopped = ask(client, "one END two", stop_sequences=["END"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
    assert stopped.content[-1].text == "one "
    messages: Any = [{"role": "user", "content": "one"}]
    cut = client.messages.create(model=MODEL, max_tokens=3, messages=messages)
    assert cut.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("status-429", anthropic.RateLimitError),
        ("status-503", anthropic.InternalServerError),
        ("empty", anthropic.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_types_of_the_sdk(
    client: Anthropic, fault: str, kind: type[anthropic.APIStatusError], stream: bool
) -> None:
    with pytest.raises(kind) as raised:
        ask(client, stream=stream, extra_headers={"x-dsinfer-fault": fault})
    body: Any = raised.value.body
    assert body["type"] == "error"
    assert raised.value.request_id == body["request_id"]


def test_bad_requests(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="server tools are not supported"):
        ask(client, tools=[{"type": "bash_20250124", "name": "bash"}])
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nope")


def test_a_stream_that_fails_raises(client: Anthropic) -> None:
    stream = ask(client, stream=True, extra_headers={"x-dsinfer-fault": "error"})
    with pytest.raises(anthropic.APIStatusError, match="failed in the middle"):
        list(stream)
