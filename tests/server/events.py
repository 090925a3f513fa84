"""Reads a stream of server-sent events, strictly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Event:
    """One event; a comment has neither name nor data."""

    name: str | None
    data: str | None
    comment: str | None = None

    def json(self) -> Any:
        assert self.data is not None
        return json.loads(self.data)


def read_events(body: bytes) -> list[Event]:
    """All events; AssertionError if one is half-written."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n"), f"the stream ends in the middle of an event: {text[-80:]!r}"
    return [_event(block) for block in text[:-2].split("\n\n")]


def _event(block: str) -> Event:
    event = Event(None, None)
    for line in block.split("\n"):
        field, _, value = line.partition(": ")
        if field == "":
            event.comment = value
        elif field == "event":
            event.name = value
        else:
            assert field == "data", line
            assert event.data is None
            event.data = value
    return event


def errors_of(dialect: str, events: list[Event]) -> list[str]:
    """The messages of errors in a stream."""
    found = []
    for event in events:
        if event.data is None or event.data == "[DONE]":
            continue
        data = event.json()
        if dialect == "responses":
            failed = data["type"] == "response.failed"
            message = data["response"]["error"]["message"] if failed else data.get("message")
            if failed or data["type"] == "error":
                found.append(message)
        elif "error" in data:
            found.append(data["error"]["message"])
    return found


def ends_well(dialect: str, events: list[Event]) -> bool:
    """Whether a stream came to its proper end."""
    last = events[-1]
    if dialect == "chat":
        return last.data == "[DONE]"
    return last.name in ("response.completed", "response.incomplete", "message_stop")
