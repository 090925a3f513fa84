"""The shape of a Messages body (recipe.md 2.4)."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.reading import (
    BodyError,
    Record,
    Tagged,
    choice,
    missing,
    optional,
    read_any,
    read_boolean,
    read_number,
    read_string,
    required,
    sequence_of,
    text_or_list,
    variants,
    wrong_kind,
)
from dsinfer_jax.recipe.request_body import (
    read_effort,
    read_optional_string,
    read_u32,
    thinking_record,
)

_STRING_OR_LIST = "expected a string or a list"
_TEXT = {"text": required(read_string)}

_IMAGE_SOURCE = Tagged(
    "MessagesImageSource",
    "type",
    variants(
        "MessagesImageSource",
        base64={
            "media_type": required(
                choice("image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp")
            ),
            "data": required(read_string),
        },
        url={"url": required(read_string)},
        file={"file_id": required(read_string)},
    ),
    by_position=True,
)
_IMAGE = {"source": required(_IMAGE_SOURCE)}
_DOCUMENT = {
    "source": required(Record("struct MessagesDocumentSource", media_type=optional(read_string)))
}

_RESULT_BLOCK = Tagged(
    "MessagesToolResultBlock",
    "type",
    variants(
        "MessagesToolResultBlock",
        text=_TEXT,
        image=_IMAGE,
        document=_DOCUMENT,
        tool_reference={"tool_name": required(read_string)},
    ),
)
_TOOL_REFERENCE = Tagged(
    "MessagesToolReference",
    "type",
    variants("MessagesToolReference", tool_reference={"name": required(read_string)}),
    by_position=True,
)

_BLOCK = Tagged(
    "MessagesContentBlock",
    "type",
    variants(
        "MessagesContentBlock",
        text=_TEXT,
        image=_IMAGE,
        document=_DOCUMENT,
        thinking={"signature": optional(read_string), "thinking": required(read_string)},
        server_tool_use={
            "id": required(read_string),
            "name": required(read_string),
            "input": required(read_any),
        },
        tool_use={
            "id": required(read_string),
            "name": required(read_string),
            "input": required(read_any),
        },
        tool_result={
            "tool_use_id": required(read_string),
            "content": optional(text_or_list(_RESULT_BLOCK, _STRING_OR_LIST)),
            "is_error": optional(read_boolean),
        },
        web_search_tool_result={
            "tool_use_id": required(read_string),
            "content": required(read_any),
        },
        tool_addition={"tool": required(_TOOL_REFERENCE)},
    ),
)

_read_role = choice("user", "assistant", "system")
_read_content = text_or_list(_BLOCK, _STRING_OR_LIST)


def _read_message(value: Any) -> dict[str, Any]:
    """A message; its role is always read before its content."""
    expected = "adjacently tagged enum MessagesMessage"
    if type(value) is list:
        if value and type(value[0]) is not str:
            raise wrong_kind(value[0], "variant identifier")
        role = _read_role(value[0]) if value else None
        if len(value) < 2:
            raise BodyError(f"invalid length {len(value)}, expected {expected}")
        content = _read_content(value[1])
        if len(value) > 2:
            raise BodyError(f"invalid length {len(value)}, expected fewer elements in array")
        return {"role": role, "content": content}
    if type(value) is not dict:
        raise wrong_kind(value, expected)
    for name, reader in (("role", _read_role), ("content", _read_content)):
        if name not in value:
            raise missing(name)
        value[name] = reader(value[name])
    return value


_SERVER_TOOL = Record(
    "struct MessagesServerTool", type=required(read_string), name=optional(read_string)
)
_CLIENT_TOOL_FIELDS = (
    ("description", read_optional_string),
    ("defer_loading", lambda value: None if value is None else read_boolean(value)),
)


def _read_tool(value: Any) -> dict[str, Any]:
    """A server tool if it has a type, else a client tool; ``type`` is absent in the latter."""
    if type(value) is not dict or ("type" not in value and "name" not in value):
        raise missing("name")
    if "type" in value:
        return _SERVER_TOOL(value)
    try:
        name = "name"
        read_string(value["name"])
        for name, reader in _CLIENT_TOOL_FIELDS:
            reader(value.get(name))
    except BodyError as fault:
        raise BodyError(f"field `{name}`: {fault}") from None
    return value


_PARALLEL = {"disable_parallel_tool_use": optional(read_boolean)}
_TOOL_CHOICE = Tagged(
    "MessagesToolChoice",
    "type",
    variants(
        "MessagesToolChoice",
        auto=_PARALLEL,
        any=_PARALLEL,
        tool={"name": required(read_string), **_PARALLEL},
        none={},
    ),
)
_SYSTEM_BLOCK = Tagged("MessagesSystemBlock", "type", variants("MessagesSystemBlock", text=_TEXT))

MESSAGES_REQUEST = Record(
    "struct MessagesRequest",
    buffered=False,
    model=required(read_string),
    messages=required(sequence_of(_read_message)),
    system=optional(text_or_list(_SYSTEM_BLOCK, _STRING_OR_LIST)),
    max_tokens=optional(read_u32),
    temperature=optional(read_number),
    top_p=optional(read_number),
    stop_sequences=optional(sequence_of(read_string)),
    stream=optional(read_boolean),
    tools=optional(sequence_of(_read_tool)),
    tool_choice=optional(_TOOL_CHOICE),
    thinking=optional(thinking_record("MessagesThinking")),
    output_config=optional(
        Record("struct MessagesOutputConfig", buffered=False, effort=optional(read_effort))
    ),
    metadata=optional(
        Record("struct MessagesMetadata", buffered=False, user_id=optional(read_string))
    ),
)
