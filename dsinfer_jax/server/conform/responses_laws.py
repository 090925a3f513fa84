"""Responses: bodies and streams to outcomes; numbering, nesting and agreement of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsinfer_jax.server.conform.client import Event, Violation
from dsinfer_jax.server.conform.outcome import Call, Outcome, Usage, law

ENDS = ("response.completed", "response.incomplete")
DELTAS = {
    "response.reasoning_text.delta": "response.reasoning_text.done",
    "response.output_text.delta": "response.output_text.done",
    "response.function_call_arguments.delta": "response.function_call_arguments.done",
    "response.custom_tool_call_input.delta": "response.custom_tool_call_input.done",
}
DONES = {done: delta for delta, done in DELTAS.items()}
REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


def read_body(body: Any) -> Outcome:
    """The outcome of a response object."""
    law(body["object"] == "response", f"the object is {body['object']!r}")
    if body["status"] == "failed":
        raise Violation(f"the response failed: {body['error']['message']}")
    outcome = Outcome(id=body["id"], finish=_finish(body), usage=_usage(body.get("usage")))
    for item in body["output"]:
        if item["type"] == "reasoning":
            outcome.reasoning += _texts(item)
        elif item["type"] == "message":
            outcome.text += _texts(item)
        elif item["type"] == "function_call":
            outcome.calls.append(Call(item["call_id"], item["name"], item["arguments"]))
    return outcome


def _texts(item: Any) -> str:
    return "".join(part["text"] for part in item["content"])


def _finish(body: Any) -> str | None:
    if body["status"] == "incomplete":
        reason = body["incomplete_details"]["reason"]
        return REASONS.get(reason, reason)
    if body["status"] != "completed":
        return None
    has_calls = any(item["type"] == "function_call" for item in body["output"])
    return "tool_calls" if has_calls else "stop"


def _usage(usage: Any) -> Usage:
    law(isinstance(usage, dict), "the response has no usage")
    prompt, output = usage["input_tokens"], usage["output_tokens"]
    law(usage["total_tokens"] == prompt + output, f"the total of {usage} is not the sum")
    return Usage(
        prompt,
        usage["input_tokens_details"]["cached_tokens"],
        output,
        usage["output_tokens_details"]["reasoning_tokens"],
    )


@dataclass
class OpenItem:
    """An output item between `added` and `done`."""

    index: int
    has_part: bool = False
    joined: str = ""
    is_done: bool = False  # its text is


def read_stream(events: list[Event]) -> Outcome:
    """The outcome of a stream."""
    law(bool(events), "the stream is empty")
    items: list[Any] = []
    item: OpenItem | None = None
    for number, event in enumerate(events):
        data = event.json()
        kind = data["type"]
        law(event.name == kind, f"the event {event.name!r} has the type {kind!r}")
        _refuse_errors(data)
        law(data["sequence_number"] == number,
            f"event {number} has the number {data['sequence_number']}")  # fmt: skip
        if number == 0:
            law(kind == "response.created", f"the first event is {kind!r}")
        if kind in ENDS:
            law(number == len(events) - 1, f"{kind!r} is not the last event")
            law(item is None, "an item is open at the end")
            law(data["response"]["output"] == items, "the items at the end are not those before")
            return read_body(data["response"])
        if kind == "response.output_item.added":
            law(item is None, "an item begins inside another one")
            law(data["output_index"] == len(items), f"item {data['output_index']} comes too early")
            item = OpenItem(data["output_index"])
        elif "output_index" in data:
            if item is None or data["output_index"] != item.index:
                raise Violation(f"{kind!r} belongs to no open item")
            item = _advance(item, kind, data, items)
    raise Violation(f"the last event is {events[-1].name!r}, not an end of the response")


def _refuse_errors(data: Any) -> None:
    if data["type"] == "response.failed":
        message = data["response"]["error"]["message"]
        raise Violation(f"the stream ended with an error: {message}")
    if data["type"] == "error":
        raise Violation(f"the stream ended with an error: {data.get('message')}")


def _advance(item: OpenItem, kind: str, data: Any, items: list[Any]) -> OpenItem | None:
    """Take an event of the open item; the item, or None once it is done."""
    if kind == "response.content_part.added":
        item.has_part = True
    elif kind in DELTAS:
        law(not item.is_done, f"{kind!r} comes after its text is done")
        law(item.has_part or "text" not in kind, f"{kind!r} comes before its part")
        item.joined += data["delta"]
    elif kind in DONES:
        text = next(data[name] for name in ("text", "arguments", "input") if name in data)
        law(text == item.joined, f"{kind!r} is not what its deltas join to")
        item.is_done = True
    elif kind == "response.output_item.done":
        items.append(data["item"])
        return None
    return item
