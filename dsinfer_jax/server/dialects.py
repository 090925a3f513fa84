"""The three dialects as a table: who reads a body, who adds events up, what ids look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dsinfer_jax.recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    MessagesRequest,
    MessagesResponse,
    ResponsesRequest,
    ResponsesResponse,
)

DialectName = Literal["chat", "responses", "messages"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect.

    Attributes:
        name: as in logs and metrics.
        request: reads a body; `chunk_generator` makes the events of its answer.
        response: adds events up; knows the names of events and how a stream ends.
        id_prefix: of response ids.
    """

    name: DialectName
    request: Any  # a class of the recipe with the static method chunk_generator
    response: Any
    id_prefix: str


CHAT = Dialect("chat", ChatCompletionRequest, ChatCompletionResponse, "chatcmpl-")
RESPONSES = Dialect("responses", ResponsesRequest, ResponsesResponse, "resp_")
MESSAGES = Dialect("messages", MessagesRequest, MessagesResponse, "msg_")
DIALECTS = (CHAT, RESPONSES, MESSAGES)


def dialect_of_path(path: str) -> Dialect:
    """Whose error shape a path gets; Chat Completions where nothing says otherwise."""
    if path.startswith("/v1/messages"):
        return MESSAGES
    return RESPONSES if path.startswith("/v1/responses") else CHAT
