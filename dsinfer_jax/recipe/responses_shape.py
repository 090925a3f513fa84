"""The shape of a Responses body (recipe.md 2.3)."""

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
    read_items,
    read_map,
    read_number,
    read_string,
    required,
    sequence_of,
    text_or_list,
    variant,
    variants,
)
from dsinfer_jax.recipe.request_body import (
    FUNCTION_FIELDS,
    read_detail,
    read_effort,
    read_u8,
    read_u32,
)

_INPUT_IMAGE = Record(
    "struct ResponsesInputImage",
    image_url=optional(read_string),
    file_id=Field(read_string, required=False, null_is_absent=True, may_be_left_out=True),
    detail=optional(read_detail),
)
_TEXT_ONLY = {"text": required(read_string)}
_NOTHING = Record("unit")

_MESSAGE_BLOCK = Tagged(
    "ResponsesContentBlock",
    "type",
    {
        **variants("ResponsesContentBlock", input_text=_TEXT_ONLY, output_text=_TEXT_ONLY),
        "input_image": _INPUT_IMAGE,
        "input_file": _NOTHING,
    },
)
_OUTPUT_BLOCK = Tagged(
    "ResponsesToolCallOutputItem",
    "type",
    {
        **variants("ResponsesToolCallOutputItem", input_text=_TEXT_ONLY),
        "input_image": _INPUT_IMAGE,
        "input_file": _NOTHING,
    },
)
_read_output = text_or_list(
    _OUTPUT_BLOCK, "output should be a string or a list of output content parts"
)
_read_execution = choice("client", "server")

_FUNCTION_TOOL = Record("struct ResponsesFunctionTool", buffered=True, **FUNCTION_FIELDS)
_USER_LOCATION = Record(
    "struct ResponsesUserLocation",
    city=optional(read_string),
    country=optional(read_string),
    region=optional(read_string),
    timezone=optional(read_string),
)
_WEB_SEARCH_TOOL = Record(
    "struct ResponsesWebSearchTool",
    search_context_size=optional(choice("low", "medium", "high")),
    user_location=optional(_USER_LOCATION),
)
_NAMESPACE_TOOL = Tagged(
    "ResponsesNamespaceTool",
    "type",
    {
        "function": _FUNCTION_TOOL,
        "custom": variant("ResponsesNamespaceTool", "Custom", name=required(read_string)),
    },
    by_position=True,
)
_TOOLS = {
    "function": _FUNCTION_TOOL,
    "namespace": variant(
        "ResponsesTool",
        "Namespace",
        name=required(read_string),
        description=optional(read_string),
        tools=required(sequence_of(_NAMESPACE_TOOL)),
    ),
    "custom": variant("ResponsesTool", "Custom", name=required(read_string)),
    "web_search": _WEB_SEARCH_TOOL,
    "web_search_2025_08_26": _WEB_SEARCH_TOOL,
    "tool_search": variant(
        "ResponsesTool",
        "ToolSearch",
        execution=optional(_read_execution),
        description=optional(read_string),
        parameters=optional(read_any),
    ),
}
_TOOL = Tagged("ResponsesTool", "type", _TOOLS, other=_NOTHING)
_FOUND_TOOL = Tagged("ResponsesTool", "type", _TOOLS, other=_NOTHING, by_position=True)

_ITEMS = {
    "message": Record(
        "struct ResponsesMessage",
        role=required(choice("user", "assistant", "system", "developer")),
        content=required(
            text_or_list(_MESSAGE_BLOCK, "content should be a string or a list of content blocks")
        ),
    ),
    "reasoning": Record(
        "struct ResponsesReasoning",
        content=optional(
            sequence_of(Record("struct ResponsesReasoningContent", text=required(read_string)))
        ),
        encrypted_content=optional(read_string),
    ),
    "function_call": Record(
        "struct ResponsesFunctionCall",
        arguments=required(read_string),
        call_id=required(read_string),
        name=required(read_string),
        namespace=optional(read_string),
    ),
    "function_call_output": Record(
        "struct ResponsesFunctionCallOutput",
        output=required(_read_output),
        call_id=optional(read_string),
    ),
    "custom_tool_call": Record(
        "struct ResponsesCustomToolCall",
        call_id=required(read_string),
        name=required(read_string),
        input=required(read_string),
    ),
    "custom_tool_call_output": Record(
        "struct ResponsesCustomToolCallOutput",
        call_id=required(read_string),
        output=optional(_read_output),
    ),
    "tool_search_call": Record(
        "struct ResponsesToolSearchCall",
        call_id=required(read_string),
        arguments=required(read_map),
        execution=optional(_read_execution),
    ),
    "tool_search_output": Record(
        "struct ResponsesToolSearchOutput",
        call_id=required(read_string),
        tools=required(sequence_of(_FOUND_TOOL)),
        execution=optional(_read_execution),
    ),
}
_ITEM = Tagged("ResponsesInputItem", "type", _ITEMS, other=_NOTHING)
_MESSAGE_ITEM = _ITEMS["message"]


def _read_item(value: Any) -> Any:
    if type(value) is dict:
        if "type" in value:
            return _ITEM(value)
        if "role" in value:
            return {"type": "message", **_MESSAGE_ITEM(value)}
    raise BodyError("invalid input item")


def _read_input(value: Any) -> Any:
    if type(value) is str:
        return value
    if type(value) is not list:
        raise BodyError("input should be a string or a list of input items")
    read_items(value, _read_item)
    return value


_TOOL_CHOICE = Tagged(
    "ResponsesToolChoice",
    "type",
    {
        "function": variant("ResponsesToolChoice", "Function", name=required(read_string)),
        "web_search": _NOTHING,
        "web_search_2025_08_26": _NOTHING,
        "custom": variant("ResponsesToolChoice", "Custom", name=required(read_string)),
    },
)


def _read_tool_choice(value: Any) -> Any:
    if type(value) is str and value in ("none", "auto", "required"):
        return value
    if type(value) is dict and "type" in value:
        return _TOOL_CHOICE(value)
    raise BodyError("expected one of `none`, `auto`, `required` or a tool choice object")


_TEXT_FORMAT = Tagged(
    "ResponsesTextFormat",
    "type",
    variants(
        "ResponsesTextFormat",
        text={},
        json_schema={
            "name": required(read_string),
            "schema": required(read_any),
            "description": optional(read_string),
            "strict": optional(read_boolean),
        },
        json_object={},
    ),
)

RESPONSES_REQUEST = Record(
    "struct ResponsesRequest",
    buffered=False,
    model=required(read_string),
    input=optional(_read_input),
    instructions=optional(read_string),
    max_output_tokens=optional(read_u32),
    reasoning=optional(
        Record(
            "struct ResponsesReasoningConfig",
            buffered=False,
            effort=optional(read_effort),
            generate_summary=optional(choice("auto", "concise", "detailed")),
            summary=optional(choice("auto", "concise", "detailed")),
        )
    ),
    stream=optional(read_boolean),
    temperature=optional(read_number),
    text=optional(
        Record(
            "struct ResponsesTextConfig",
            buffered=False,
            format=Field(_TEXT_FORMAT, required=False, may_be_left_out=True),
            verbosity=optional(choice("low", "medium", "high")),
        )
    ),
    tool_choice=optional(_read_tool_choice),
    tools=optional(sequence_of(_TOOL)),
    top_logprobs=optional(read_u8),
    top_p=optional(read_number),
    user=optional(read_string),
)
