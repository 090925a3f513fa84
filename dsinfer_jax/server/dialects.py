"""The three dialects as a table: who reads a body, who adds events up, what ids look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dsinfer_jax.recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ConversationRequest,
    ConversionOptions,
    MessagesRequest,
    MessagesResponse,
    ResponsesRequest,
    ResponsesResponse,
)

DialectName = Literal["chat", "responses", "messages"]


class ReadRequest(Protocol):
    """A request body that was read."""

    @property
    def model(self) -> str: ...

    def convert(self, options: ConversionOptions) -> ConversationRequest: ...


class StreamEvent(Protocol):
    """An event of a dialect."""

    def to_json(self) -> str: ...


class WholeResponse(Protocol):
    """Events added up."""

    def accumulate(self, chunk: Any) -> None: ...

    def to_json(self) -> str: ...


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
