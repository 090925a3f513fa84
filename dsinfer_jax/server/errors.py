"""Errors as each dialect writes them: bodies with a status, and events that end a stream.

The official protocol layer knows faults of requests only; what a server adds (no key, too many
requests, no answer) takes the shapes that the official SDKs read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from typing import Any

from dsinfer_jax.recipe import ConversionError
from dsinfer_jax.server.dialects import Dialect
from dsinfer_jax.server.source import SourceError

OPENAI_TYPES = {
    401: ("authentication_error", "invalid_api_key"),
    404: ("not_found_error", "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
Headers = list[tuple[bytes, bytes]]


@dataclass
class RequestError(Exception):
    """A request that ends with an error.

    Attributes:
        status: HTTP status.
        message: a sentence for the client.
        retry_after: seconds, for the header; None: no header.
        body: JSON that the protocol layer fixes for dialects of OpenAI; None: made here.
    """

    status: int
    message: str
    retry_after: float | None = None
    body: str | None = None

    def headers(self) -> Headers:
        if self.retry_after is None:
            return []
        return [(b"retry-after", b"%d" % ceil(self.retry_after))]


def request_error(error: Exception) -> RequestError:
    """The error of a request for an exception that conversion or a source raised."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ConversionError):
        return RequestError(error.status_code, str(error), body=error.body)
    if isinstance(error, SourceError):
        return RequestError(error.status, error.message, error.retry_after)
    return RequestError(500, "The server failed to answer this request; its log says why.")


def error_object(dialect: Dialect, error: RequestError) -> dict[str, Any]:
    """The innermost object: type and message, and what else the dialect has."""
    if dialect.name == "messages":
        kind = MESSAGES_TYPES.get(error.status)
        kind = kind or ("invalid_request_error" if error.status < 500 else "api_error")
        return {"type": kind, "message": error.message}
    default = "invalid_request_error" if error.status < 500 else "server_error"
    kind, code = OPENAI_TYPES.get(error.status, (default, default))
    return {"message": error.message, "type": kind, "param": None, "code": code}


def error_body(dialect: Dialect, error: RequestError, request_id: str) -> str:
    """The body of an error response."""
    if dialect.name == "messages":
        return _compact(
            {"type": "error", "error": error_object(dialect, error), "request_id": request_id}
        )
    return error.body or _compact({"error": error_object(dialect, error)})


def last_event(
    dialect: Dialect, error: RequestError, request_id: str, sent: int, first_event: str | None
) -> tuple[str | None, str]:
    """Name and data of the event that ends a stream with an error.

    Args:
        sent: number of events that the client has; a Responses event has this number.
        first_event: JSON of the first event, which holds the response object; None: none was sent.
    """
    if dialect.name == "messages":
        return "error", error_body(dialect, error, request_id)
    if dialect.name == "chat":
        return None, _compact({"error": error_object(dialect, error)})
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    event: dict[str, Any]
    if first_event is None:
        event = {"type": "error", "code": code, "message": error.message, "param": None}
        return "error", _compact({**event, "sequence_number": sent})
    response = json.loads(first_event)["response"]
    response |= {"status": "failed", "error": {"code": code, "message": error.message}}
    event = {"type": "response.failed", "response": response, "sequence_number": sent}
    return "response.failed", _compact(event)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
