"""The OpenAPI document of the server.

It says what clients may rely on: paths, the required members of bodies, statuses and shapes of
errors. All members of the three dialects are in their own official documents.
"""

from __future__ import annotations

from typing import Any

from dsinfer_jax.server.settings import ServerSettings

OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": "null"},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
MESSAGES_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
ERRORS = {
    "400": "The request cannot be served as it is.",
    "401": "No valid API key.",
    "404": "There is no such thing.",
    "405": "The path has other methods.",
    "408": "The body did not arrive in time.",
    "413": "The body is too long.",
    "429": "Too many requests; retry-after says how long to wait.",
    "500": "The server or its model failed.",
    "502": "The model gave no complete answer.",
    "503": "No new requests are taken; retry-after says how long to wait.",
    "504": "The answer took too long.",
}
BODY_ERRORS = tuple(ERRORS)
READ_ERRORS = ("401", "404", "405")
EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def openapi_document(settings: ServerSettings) -> dict[str, Any]:
    """The document as a JSON value."""
    model = {"type": "string", "enum": list(settings.models)}
    number = {"type": "integer", "minimum": 1}
    text_or_list = {"type": ["string", "array"]}
    turns = {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["user", "assistant", "system"]},
                           "content": text_or_list},
        },
    }  # fmt: skip
    temperature = {"type": "number", "minimum": 0, "maximum": 2}
    shared = {"model": model, "stream": {"type": "boolean"}, "temperature": temperature}
    chat = _object(("model", "messages"), {**shared, "messages": turns, "max_tokens": number})
    responses = _object(
        ("model", "input"), {**shared, "input": text_or_list, "max_output_tokens": number}
    )
    messages = _object(
        ("model", "messages", "max_tokens"), {**shared, "messages": turns, "max_tokens": number}
    )
    stored = [_path_parameter("id")]
    paths = {
        "/v1/chat/completions": {"post": _generate("Chat Completions", chat, OPENAI_ERROR)},
        "/v1/responses": {"post": _generate("Responses", responses, OPENAI_ERROR)},
        "/v1/messages": {"post": _generate("Messages", messages, MESSAGES_ERROR)},
        "/v1/messages/count_tokens": {
            "post": _operation(
                "Tokens of a Messages prompt", MESSAGES_ERROR, BODY_ERRORS, body=messages
            )
        },
        "/v1/responses/{id}": {
            "parameters": stored,
            "get": _operation("A stored response", OPENAI_ERROR, READ_ERRORS),
            "delete": _operation("Forget a stored response", OPENAI_ERROR, READ_ERRORS),
        },
        "/v1/models": {"get": _operation("Models", OPENAI_ERROR, READ_ERRORS)},
        "/v1/models/{name}": {
            "parameters": [_path_parameter("name")],
            "get": _operation("One model", OPENAI_ERROR, READ_ERRORS),
        },
        "/health": {"get": _operation("Are requests taken", OPENAI_ERROR, ("405",), busy=True)},
        "/status.json": {"get": _operation("What is going on", OPENAI_ERROR, READ_ERRORS)},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "dsinfer_jax", "version": "1"},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
        "security": [{"bearer": []}, {"key": []}] if settings.api_keys else [],
    }


def _object(required: tuple[str, ...], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _generate(summary: str, body: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    """An operation whose answer may be a stream."""
    operation = _operation(summary, error, BODY_ERRORS, body=body)
    operation["responses"]["200"]["content"]["text/event-stream"] = {"schema": EVENT}
    return operation


def _operation(
    summary: str,
    error: dict[str, Any],
    statuses: tuple[str, ...],
    body: dict[str, Any] | None = None,
    busy: bool = False,
) -> dict[str, Any]:
    """An operation with an object as its answer. `busy`: a 503 has the same object."""
    answer = {"description": "The answer.", "content": {"application/json": {"schema": ANY_OBJECT}}}
    responses: dict[str, Any] = {"200": answer}
    if busy:
        responses["503"] = answer
    for status in statuses:
        content = {"application/json": {"schema": error}}
        responses[status] = {"description": ERRORS[status], "content": content}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return operation
