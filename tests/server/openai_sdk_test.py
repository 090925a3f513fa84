"""The official OpenAI SDK against the mock, untouched: Chat Completions and Responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from live import MODEL, Live, until
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, ConfigDict, ValidationError

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
FLAT_TOOL = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
QUESTION = "Please use get_weather for 北京."


@pytest.fixture(scope="module")
def client(mock: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{mock.url}/v1", api_key="any", max_retries=0) as made:
        yield made


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    people: int


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "deepseek"


def test_chat_plain(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[user("Grüße, 世界")])
    message = answer.choices[0].message
    assert message.content == "Grüße, 世界"
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"]
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


def test_chat_streamed(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[user("Grüße, 世界")],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    for chunk in chunks:
        assert type(chunk) is ChatCompletionChunk
        strict(chunk)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "Grüße, 世界"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


LATER_FIELDS = {"cache_write_tokens"}  # the SDK requires it since 3.x; the official layer lacks it


def strict(value: BaseModel) -> None:
    """Validate what the SDK built without checks."""
    try:
        type(value).model_validate(value.model_dump(warnings=False))
    except ValidationError as error:
        faults = [fault for fault in error.errors() if fault["loc"][-1] not in LATER_FIELDS]
        assert not faults


def test_chat_stream_helper_adds_up(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=[user(QUESTION)], tools=[TOOL]
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "get_weather"
    assert set(json.loads(calls[0].function.arguments)) == {"city", "days"}
    assert final.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_chat_tools_over_several_turns(client: OpenAI, stream: bool) -> None:
    history: list[Any] = [user(QUESTION)]
    for turn in range(2):
        if turn:
            history.append(user("And get_weather again."))
        message = _chat_turn(client, history, stream)
        assert message["tool_calls"]
        history.append(message)
        for call in message["tool_calls"]:
            history.append({"role": "tool", "tool_call_id": call["id"], "content": "Sonne, 21°"})
        message = _chat_turn(client, history, stream)
        assert not message.get("tool_calls")
        assert message["content"] == "Sonne, 21°"
        history.append(message)


def _chat_turn(client: OpenAI, history: list[Any], stream: bool) -> dict[str, Any]:
    if stream:
        with client.chat.completions.stream(model=MODEL, messages=history, tools=[TOOL]) as live:
            message = live.get_final_completion().choices[0].message
    else:
        answer = client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL])
        message = answer.choices[0].message
    dumped = message.model_dump(exclude_none=True)
    dumped.pop("parsed", None)
    for call in dumped.get("tool_calls", []):
        call["function"].pop("parsed_arguments", None)
    return dumped


def test_chat_structured_output(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=[user("A city.")], response_format=City
    )
    assert isinstance(answer.choices[0].message.parsed, City)
    text = client.chat.completions.create(
        model=MODEL, messages=[user("As json.")], response_format={"type": "json_object"}
    )
    assert json.loads(text.choices[0].message.content or "") == {"echo": "As json."}


def test_chat_required_tool_without_thinking(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[user("Anything.")],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        extra_body={"thinking": {"type": "disabled"}},
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "get_weather"
    none = client.chat.completions.create(
        model=MODEL, messages=[user(QUESTION)], tools=[TOOL], tool_choice="none"
    )
    assert none.choices[0].message.tool_calls is None


def test_chat_choices_and_log_probabilities(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[user("Hi.")], n=3, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None
    entries = logprobs.content
    assert entries is not None
    assert "".join(entry.token for entry in entries) == "Hi."
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


@pytest.mark.parametrize(
    ("status", "kind"),
    [("status-429", openai.RateLimitError), ("status-503", openai.InternalServerError)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_types_of_the_sdk(
    client: OpenAI, status: str, kind: type[openai.APIStatusError], stream: bool
) -> None:
    headers = {"x-dsinfer-fault": status}
    with pytest.raises(kind) as chat:
        client.chat.completions.create(
            model=MODEL, messages=[user("Hi.")], stream=stream, extra_headers=headers
        )
    assert chat.value.response.headers["retry-after"] == "1"
    with pytest.raises(kind):
        client.responses.create(model=MODEL, input="Hi.", stream=stream, extra_headers=headers)


def test_the_sdk_tries_again_when_told_to(mock: Live) -> None:
    before = mock.app.state.service.metrics.requests["chat", "refused", 429]
    with (
        OpenAI(base_url=f"{mock.url}/v1", api_key="any", max_retries=1) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.chat.completions.create(
            model=MODEL,
            messages=[user("Hi.")],
            extra_headers={"x-dsinfer-fault": "status-429:0.1"},
        )
    requests = mock.app.state.service.metrics.requests
    until(lambda: requests["chat", "refused", 429] == before + 2)


def test_bad_requests(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="supported API model names"):
        client.chat.completions.create(model="nope", messages=[user("Hi.")])
    with pytest.raises(openai.BadRequestError, match="'previous' not found"):
        client.responses.create(model=MODEL, input="Hi.", previous_response_id="previous")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_nope")


def test_a_chat_stream_that_fails_raises(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=[user("Hi.")], stream=True, extra_headers={"x-dsinfer-fault": "error"}
    )
    with pytest.raises(openai.APIError, match="failed in the middle"):
        list(stream)


def test_responses_plain(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Grüße, 世界")
    strict(answer)
    assert answer.output_text == "Grüße, 世界"
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("text", ["Grüße, 世界", QUESTION])
def test_responses_streamed(client: OpenAI, text: str) -> None:
    with client.responses.stream(model=MODEL, input=text, tools=[FLAT_TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    if text == QUESTION:
        assert final.output[-1].type == "function_call"
        assert final.output[-1].parsed_arguments is None or final.output[-1].arguments
    else:
        assert final.output_text == text


def test_every_responses_event_is_of_its_type(client: OpenAI) -> None:
    for fault in (None, "error"):
        headers = {"x-dsinfer-fault": fault} if fault else {}
        stream = client.responses.create(
            model=MODEL, input=QUESTION, tools=[FLAT_TOOL], stream=True, extra_headers=headers
        )
        kinds = []
        for event in stream:
            strict(event)
            kinds.append(event.type)
        assert kinds[0] == "response.created"
        assert kinds[-1] == ("response.failed" if fault else "response.completed")


def test_responses_tools_over_several_turns(client: OpenAI) -> None:
    items: list[Any] = [user(QUESTION)]
    first = client.responses.create(model=MODEL, input=items, tools=[FLAT_TOOL])
    items += [item.model_dump(exclude_none=True) for item in first.output]
    calls = [item for item in first.output if item.type == "function_call"]
    assert calls
    for call in calls:
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "21°"})
    second = client.responses.create(model=MODEL, input=items, tools=[FLAT_TOOL])
    assert second.output_text == "21°"


@pytest.mark.parametrize("stream", [False, True])
def test_responses_are_stored(client: OpenAI, stream: bool) -> None:
    first = _response(client, stream, input=QUESTION, tools=[FLAT_TOOL])
    call = first.output[-1]
    assert call.type == "function_call"
    second = _response(
        client,
        stream,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "21°"}],
        tools=[FLAT_TOOL],
        previous_response_id=first.id,
    )
    assert second.output_text == "21°"
    assert client.responses.retrieve(second.id).output_text == "21°"
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="Hi.", previous_response_id=second.id)
    unstored = _response(client, stream, input="Hi.", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def _response(client: OpenAI, stream: bool, **fields: Any) -> Any:
    if not stream:
        return client.responses.create(model=MODEL, **fields)
    events = list(client.responses.create(model=MODEL, stream=True, **fields))
    return events[-1].response


def test_responses_structured_output(client: OpenAI) -> None:
    answer = client.responses.parse(model=MODEL, input="A city.", text_format=City)
    assert isinstance(answer.output_parsed, City)


def test_responses_cut_off_is_incomplete(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Hi.", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
