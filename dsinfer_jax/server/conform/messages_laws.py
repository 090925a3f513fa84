"""Messages: bodies and streams to outcomes; order and nesting of events."""

from __future__ import annotations

import json
from typing import Any

from dsinfer_jax.server.conform.client import Event, Violation
from dsinfer_jax.server.conform.outcome import Call, Outcome, Usage, law

REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
DELTAS = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "tool_use"}


def read_usage(usage: Any) -> Usage:
    """The counts of a usage object: the prompt is what was read anew and what was cached."""
    law(isinstance(usage, dict), "the message has no usage")
    cached = usage.get("cache_read_input_tokens") or 0
    created = usage.get("cache_creation_input_tokens") or 0
    return Usage(usage["input_tokens"] + created + cached, cached, usage["output_tokens"])


def read_body(body: Any) -> Outcome:
    """The outcome of a whole message."""
    law((body["type"], body["role"]) == ("message", "assistant"), "the body is no message")
    outcome = Outcome(
        id=body["id"], finish=REASONS.get(body["stop_reason"]), usage=read_usage(body["usage"])
    )
    for block in body["content"]:
        _take_block(outcome, block)
    return outcome


def _take_block(outcome: Outcome, block: Any) -> None:
    if block["type"] == "thinking":
        outcome.reasoning += block["thinking"]
    elif block["type"] == "text":
        outcome.text += block["text"]
    elif block["type"] == "tool_use":
        law(isinstance(block["input"], dict), "the input of a tool is no object")
        outcome.calls.append(Call(block["id"], block["name"], json.dumps(block["input"])))


def read_stream(events: list[Event]) -> Outcome:
    """The outcome of a stream."""
    law(bool(events), "the stream is empty")
    reader = _Reader()
    for number, event in enumerate(events):
        data = event.json()
        law(event.name == data["type"], f"the event {event.name!r} has the type {data['type']!r}")
        law((number == 0) == (event.name == "message_start"),
            f"event {number} is {event.name!r}")  # fmt: skip
        reader.take(data)
    law(reader.stopped, f"the last event is {events[-1].name!r}, not message_stop")
    return reader.outcome


class _Reader:
    """Reads events in order."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.stopped = False
        self._open: str | None = None
        self._blocks = 0
        self._start: Usage | None = None

    def take(self, data: Any) -> None:
        kind = data["type"]
        law(not self.stopped, f"{kind!r} comes after message_stop")
        if kind == "error":
            raise Violation(f"the stream ended with an error: {data['error'].get('message')}")
        if kind == "message_start":
            self.outcome.id = data["message"]["id"]
            self._start = read_usage(data["message"]["usage"])
        elif kind == "content_block_start":
            self._begin(data)
        elif kind == "content_block_delta":
            self._delta(data)
        elif kind == "content_block_stop":
            law(self._open is not None, "a block stops that has not begun")
            self._open = None
        elif kind == "message_delta":
            self._finish(data)
        elif kind == "message_stop":
            law(self.outcome.finish is not None, "message_stop comes before the stop reason")
            self.stopped = True

    def _begin(self, data: Any) -> None:
        block = data["content_block"]
        law(self._open is None, "a block begins inside another one")
        law(data["index"] == self._blocks, f"block {self._blocks} has the index {data['index']}")
        self._blocks += 1
        self._open = block["type"]
        if block["type"] == "tool_use":
            self.outcome.calls.append(Call(block["id"], block["name"], ""))

    def _delta(self, data: Any) -> None:
        delta = data["delta"]
        law(data["index"] == self._blocks - 1 and self._open is not None,
            f"a delta belongs to block {data['index']}, which is not open")  # fmt: skip
        kind = delta["type"]
        if kind in DELTAS:
            law(DELTAS[kind] == self._open, f"{kind!r} comes in a block of {self._open!r}")
        if kind == "thinking_delta":
            self.outcome.reasoning += delta["thinking"]
        elif kind == "text_delta":
            self.outcome.text += delta["text"]
        elif kind == "input_json_delta":
            self.outcome.calls[-1].arguments += delta["partial_json"]

    def _finish(self, data: Any) -> None:
        law(self._open is None, "a block is open at the end")
        law(self.outcome.finish is None, "two events have a stop reason")
        self.outcome.finish = REASONS.get(data["delta"]["stop_reason"])
        usage = self.outcome.usage = read_usage(data["usage"])
        same = self._start is not None and (
            (self._start.prompt, self._start.cached) == (usage.prompt, usage.cached)
        )
        law(same, "the usage of message_delta is not that of message_start")
