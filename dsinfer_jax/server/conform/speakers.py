"""One question in three dialects: how it is put, and how its answer is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsinfer_jax.server.conform import chat_laws, messages_laws, responses_laws
from dsinfer_jax.server.conform.client import Reply
from dsinfer_jax.server.conform.outcome import Outcome

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}
TOOL_NAME = "get_weather"
TOOL_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        text: of the user.
        stream: as events.
        thinking: on, off, or not said.
        tool: one is offered; `must_call`: and has to be called.
        answered: an answer with calls that the question got before; their results follow it.
        limit: of output tokens; None: what the checks of the server allow.
        stop: a stop sequence.
        json: the answer must fit SCHEMA.
    """

    text: str = "Answer in one short sentence: Grüße, 世界!"
    stream: bool = False
    thinking: bool | None = None
    tool: bool = False
    must_call: bool = False
    answered: Outcome | None = None
    limit: int | None = None
    stop: str | None = None
    json: bool = False
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Speaker:
    """A dialect: where to ask, how a question is written, how an answer is read."""

    name: str
    path: str
    write: Callable[[Question, str], dict[str, Any]]
    read_body: Callable[[Any], Outcome]
    read_stream: Callable[[list[Any]], Outcome]

    def read(self, reply: Reply) -> Outcome:
        """The outcome of a reply of status 200. Raises Violation."""
        if not reply.is_stream:
            return self.read_body(reply.json())
        outcome = self.read_stream(reply.events)
        outcome.longest_gap = reply.longest_gap
        return outcome


def _chat(question: Question, model: str) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question.text}]
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": question.stream}
    if question.thinking is not None:
        body["thinking"] = {"type": "enabled" if question.thinking else "disabled"}
    if question.tool:
        function = {"name": TOOL_NAME, "parameters": TOOL_SCHEMA}
        body["tools"] = [{"type": "function", "function": function}]
        body["tool_choice"] = "required" if question.must_call else "auto"
    if question.answered is not None:
        calls = question.answered.calls
        written = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": written})
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "21 °C"} for call in calls
        ]
    if question.limit is not None:
        body["max_tokens"] = question.limit
    if question.stop is not None:
        body["stop"] = [question.stop]
    if question.json:
        json_schema = {"name": "city", "schema": SCHEMA}
        body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    return {**body, **question.more}


def _responses(question: Question, model: str) -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"role": "user", "content": question.text}]
    body: dict[str, Any] = {"model": model, "input": items, "stream": question.stream}
    if question.thinking is not None:
        body["reasoning"] = {"effort": "high" if question.thinking else "none"}
    if question.tool:
        body["tools"] = [{"type": "function", "name": TOOL_NAME, "parameters": TOOL_SCHEMA}]
        body["tool_choice"] = "required" if question.must_call else "auto"
    if question.answered is not None:
        for call in question.answered.calls:
            named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
            items.append({"type": "function_call", **named})
        for call in question.answered.calls:
            items.append({"type": "function_call_output", "call_id": call.id, "output": "21 °C"})
    if question.limit is not None:
        body["max_output_tokens"] = question.limit
    if question.json:
        body["text"] = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}}
    return {**body, **question.more}


def _messages(question: Question, model: str) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question.text}]
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "stream": question.stream,
        "max_tokens": question.limit,
    }
    if question.thinking is not None:
        enabled = {"type": "enabled", "budget_tokens": 1_024}
        body["thinking"] = enabled if question.thinking else {"type": "disabled"}
    if question.tool:
        body["tools"] = [{"name": TOOL_NAME, "input_schema": TOOL_SCHEMA}]
        if question.must_call:
            body["tool_choice"] = {"type": "tool", "name": TOOL_NAME}
    if question.answered is not None:
        calls = question.answered.calls
        written = [
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": json.loads(call.arguments),
            }
            for call in calls
        ]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "21 °C"} for call in calls
        ]
        messages.append({"role": "assistant", "content": written})
        messages.append({"role": "user", "content": results})
    if question.stop is not None:
        body["stop_sequences"] = [question.stop]
    return {**body, **question.more}


CHAT = Speaker(
    "chat",
    "/v1/chat/completions",
    _chat,
    lambda body: chat_laws.read_body(body)[0],
    lambda events: chat_laws.read_stream(events)[0],
)
RESPONSES = Speaker(
    "responses", "/v1/responses", _responses, responses_laws.read_body, responses_laws.read_stream
)
MESSAGES = Speaker(
    "messages", "/v1/messages", _messages, messages_laws.read_body, messages_laws.read_stream
)
SPEAKERS = (CHAT, RESPONSES, MESSAGES)
