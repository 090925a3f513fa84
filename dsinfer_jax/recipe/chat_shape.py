"""The shape of a Chat Completions body (recipe.md 2.2)."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.reading import (
    BodyError,
    Field,
    Record,
    Tagged,
    choice,
    optional,
    read_any,
    read_boolean,
    read_number,
    read_string,
    required,
    sequence_of,
    text_or_list,
    variants,
)
from dsinfer_jax.recipe.request_body import (
    FUNCTION_FIELDS,
    read_detail,
    read_effort,
    read_u8,
    read_u32,
    read_u64,
    thinking_record,
)

_IMAGE_URL = Record(
    "struct ChatCompletionImageUrl",
    url=required(read_string),
    detail=Field(read_detail, required=False, null_is_absent=True, may_be_left_out=True),
)

_BLOCK = Tagged(
    "ChatCompletionRequestContentBlock",
    "type",
    variants(
        "ChatCompletionRequestContentBlock",
        text={"text": required(read_string)},
        image_url={"image_url": required(_IMAGE_URL)},
        file={
            "file_id": optional(read_string),
            "file_data": optional(read_string),
            "filename": optional(read_string),
        },
    ),
)

_read_content = text_or_list(_BLOCK, "content should be a string or a list")

_FUNCTION_CALL = Record(
    "struct ChatCompletionRequestFunctionCall",
    name=required(read_string),
    arguments=required(read_string),
)

_TOOL_CALL = Record(
    "struct ChatCompletionRequestToolCall",
    id=required(read_string),
    type=required(choice("function")),
    function=required(_FUNCTION_CALL),
)

_MESSAGE = Tagged(
    "ChatCompletionRequestMessage",
    "role",
    variants(
        "ChatCompletionRequestMessage",
        system={"content": required(_read_content), "name": optional(read_string)},
        user={"content": required(_read_content), "name": optional(read_string)},
        assistant={
            "content": optional(_read_content),
            "name": optional(read_string),
            "reasoning_content": optional(read_string),
            "tool_calls": optional(sequence_of(_TOOL_CALL)),
            "prefix": optional(read_boolean),
        },
        tool={"content": required(_read_content), "tool_call_id": required(read_string)},
        latest_reminder={"content": required(read_string)},
    ),
)

_JSON_SCHEMA = Record(
    "struct ChatCompletionResponseFormatJsonSchema",
    schema=required(read_any),
    name=optional(read_string),
    strict=optional(read_boolean),
)

_RESPONSE_FORMAT = Tagged(
    "ChatCompletionResponseFormat",
    "type",
    variants(
        "ChatCompletionResponseFormat",
        json_object={},
        json_schema={"json_schema": required(_JSON_SCHEMA)},
        regex={"regex": required(read_string)},
        text={},
    ),
)

_FUNCTION = Record("struct ChatCompletionFunctionDefinition", buffered=False, **FUNCTION_FIELDS)

_TOOL = Record(
    "struct ChatCompletionTool",
    buffered=False,
    type=required(choice("function")),
    function=required(_FUNCTION),
)

_CHOSEN_FUNCTION = Record(
    "struct ChatCompletionToolChoiceFunction", buffered=False, name=required(read_string)
)
_read_tool_type = choice("function")
_read_stop = text_or_list(read_string, "expected a string or a list")


def _read_tool_choice(value: Any) -> Any:
    if type(value) is str and value in ("none", "auto", "required"):
        return value
    if type(value) is not dict or "type" not in value:
        raise BodyError("expected one of `none`, `auto`, `required` or a tool")
    for name, reader in (("type", _read_tool_type), ("function", _CHOSEN_FUNCTION)):
        try:
            value[name] = reader(value.get(name))
        except BodyError as fault:
            raise BodyError(f"field `{name}`: {fault}") from None
    return value


CHAT_COMPLETION_REQUEST = Record(
    "struct ChatCompletionRequest",
    buffered=False,
    messages=required(sequence_of(_MESSAGE)),
    model=required(read_string),
    frequency_penalty=optional(read_number),
    logprobs=optional(read_boolean),
    top_logprobs=optional(read_u8),
    max_tokens=optional(read_u32),
    n=optional(read_u8),
    presence_penalty=optional(read_number),
    seed=optional(read_u64),
    stop=optional(_read_stop),
    stream=optional(read_boolean),
    stream_options=optional(
        Record(
            "struct ChatCompletionStreamOptions",
            buffered=False,
            include_usage=optional(read_boolean),
        )
    ),
    temperature=optional(read_number),
    top_p=optional(read_number),
    response_format=optional(_RESPONSE_FORMAT),
    tools=optional(sequence_of(_TOOL)),
    tool_choice=optional(_read_tool_choice),
    reasoning_effort=optional(read_effort),
    thinking=optional(thinking_record("ChatCompletionThinking")),
    parallel_tool_calls=optional(read_boolean),
)
