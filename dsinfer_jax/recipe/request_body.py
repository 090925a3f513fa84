"""A request body from bytes, text or Python values, and the shapes that dialects share."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.json_text import JsonSyntaxError, read_body
from dsinfer_jax.recipe.json_values import json_value
from dsinfer_jax.recipe.reading import (
    BodyError,
    Reader,
    Record,
    choice,
    optional,
    read_any,
    read_boolean,
    read_string,
    required,
    unsigned_reader,
)
from dsinfer_jax.recipe.values import string

read_effort = choice("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
read_detail = choice("low", "high", "original", "auto")
read_u8 = unsigned_reader(8)
read_u32 = unsigned_reader(32)
read_u64 = unsigned_reader(64)


FUNCTION_FIELDS = {
    "name": required(read_string),
    "description": optional(read_string),
    "parameters": optional(read_any),
    "strict": optional(read_boolean),
}


def thinking_record(name: str) -> Record:
    """The ``thinking`` setting; the budget is checked and then ignored."""
    return Record(
        f"struct {name}",
        buffered=False,
        type=required(choice("adaptive", "enabled", "disabled")),
        budget_tokens=optional(read_u64),
    )


def read_request(body: Any, shape: Reader) -> dict[str, Any]:
    """The checked body, owned by the caller.

    Raises ``ValueError`` with the official message for faults of syntax and type; for Python
    values also what ``json_value`` raises.
    """
    if isinstance(body, bytes | str):
        text = string("body", body) if isinstance(body, str) else body
        try:
            value = read_body(text)
        except JsonSyntaxError as error:
            raise ValueError(f"invalid JSON request: {error}") from None
    else:
        value = json_value(body)
    try:
        return shape(value)
    except BodyError as error:
        raise ValueError(f"invalid request body: {error}") from None


def read_optional_string(value: Any) -> str | None:
    """A string or null."""
    return None if value is None else read_string(value)
