"""The tools and the answer format of a request: schemas, choice and constraint (recipe.md 2.8)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinfer_jax.recipe.conversation import (
    Conversation,
    Message,
    ReasoningEffort,
    ResponseFormat,
    ToolChoice,
    ToolDefinition,
    new_conversation,
    new_tool,
)
from dsinfer_jax.recipe.conversation_request import (
    JsonSchema,
    OutputConstraint,
    new_constraint,
)
from dsinfer_jax.recipe.json_values import write_compact
from dsinfer_jax.recipe.schema_check import check_schema
from dsinfer_jax.recipe.settings import empty_string
from dsinfer_jax.recipe.strict_schema import (
    normalise_response_schema,
    normalise_tool_parameters,
)
from dsinfer_jax.recipe.values import ConversionError, conversion_error

MAXIMUM_NAME_LENGTH = 128
EMPTY = {"type": "object"}
_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")


def check_name(name: str, place: str) -> None:
    """Refuse a function name that is empty, has other characters, or is too long."""
    if _NAME.match(name) and len(name) <= MAXIMUM_NAME_LENGTH:
        return
    if not name:
        raise empty_string(place)
    if not _NAME.match(name):
        raise conversion_error(
            f"Invalid '{place}': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )
    raise conversion_error(
        f"Invalid '{place}': string too long. Expected a string with maximum length "
        f"{MAXIMUM_NAME_LENGTH}, but got a string with length {len(name)} instead."
    )


class ChosenTools(NamedTuple):
    """The tools of the conversation and how they may be used."""

    tools: Sequence[ToolDefinition]
    choice: ToolChoice


def choose_tools(
    declared: Sequence[ToolDefinition],
    choice: str | dict[str, Any] | None,
    thinking: bool,
    null_is_empty: bool = True,
) -> ChosenTools:
    """Check the declared tools, rebuild strict ones, then apply the choice.

    ``choice`` is ``None``, ``auto``, ``none``, ``required`` or a dict with the ``name`` of a tool.
    ``null_is_empty``: parameters of null are ``{}``, else they are a bad schema.
    """
    if choice == "none":
        return ChosenTools((), "none")
    if not declared:
        return ChosenTools((), "auto")
    tools: list[ToolDefinition] = []
    names: set[str] = set()
    for tool in declared:
        if tool._name in names:
            raise conversion_error("Tool names must be unique.")
        names.add(tool._name)
        tools.append(_checked(tool, null_is_empty))
    if choice is None or choice == "auto":
        return ChosenTools(tools, "auto")
    if isinstance(choice, dict):
        name = choice["name"]
        tools = [tool for tool in tools if tool._name == name]
        if not tools:
            raise unknown_tool(name)
    if thinking:
        raise conversion_error("Thinking mode does not support this tool_choice")
    return ChosenTools(tools, "required")


def unknown_tool(name: str) -> ConversionError:
    """The error of a choice that names a tool which is not declared."""
    return conversion_error(
        f"Invalid value for 'tool_call': no function named '{name}' "
        "was specified in the 'tools' parameter."
    )


def _checked(tool: ToolDefinition, null_is_empty: bool) -> ToolDefinition:
    parameters = tool._parameters
    if parameters is None and null_is_empty:
        return with_parameters(tool, normalise_tool_parameters(EMPTY) if tool._strict else {})
    if tool._strict:
        return with_parameters(tool, normalise_tool_parameters(parameters))
    check_parameters(tool._name, parameters)
    return tool


def with_parameters(tool: ToolDefinition, parameters: Any) -> ToolDefinition:
    """A copy of ``tool`` with other parameters."""
    return new_tool(tool._name, tool._description, parameters, tool._strict, tool._defer_loading)


def check_parameters(name: str, parameters: Any) -> None:
    """Refuse parameters that are no JSON Schema of an object."""
    check_schema(parameters, f"Invalid schema for function '{name}': ")
    kind = parameters.get("type") if isinstance(parameters, dict) else None
    if kind != "object":
        raise conversion_error(
            f"Invalid schema for function '{name}': schema must be a JSON Schema of "
            f"'type: \"object\"', got 'type: {write_compact(kind)}'."
        )


def check_strict_mix(tools: Sequence[ToolDefinition], format_is_given: bool) -> None:
    """Refuse strict tools beside others, and beside a response format."""
    strict = [bool(tool._strict) for tool in tools]
    if any(strict):
        if not all(strict):
            raise conversion_error(
                "Cannot use strict tool with non-strict tool in the same request"
            )
        if format_is_given:
            raise conversion_error("response_format should not be used with tools")


class AnswerFormat(NamedTuple):
    """The format of the answer: for the prompt, and for the constraint."""

    name: ResponseFormat
    schema: Any = None
    regex: str | None = None
    constraint: OutputConstraint | None = None


def schema_format(schema: Any, strict: bool) -> AnswerFormat:
    """The ``json_schema`` format; a strict one constrains with the rebuilt schema."""
    if strict:
        constrained = normalise_response_schema(schema)
    else:
        check_schema(schema, "Invalid json schema: ")
        constrained = schema
    constraint = new_constraint("json", JsonSchema(constrained))
    return AnswerFormat("json_schema", schema, None, constraint)


def conversation_with(
    messages: Sequence[Message],
    thinking: bool,
    chosen: ChosenTools,
    effort: ReasoningEffort | None,
    answer: AnswerFormat,
) -> Conversation:
    """The conversation of checked messages, tools and answer format."""
    return new_conversation(
        messages,
        thinking,
        chosen.tools,
        chosen.choice,
        effort,
        answer.name,
        answer.schema,
        answer.regex,
    )


TEXT_FORMAT = AnswerFormat("text")
JSON_OBJECT_FORMAT = AnswerFormat("json_object", constraint=new_constraint("json", ""))


def output_constraint(chosen: ChosenTools, answer: AnswerFormat) -> OutputConstraint | None:
    """The constraint of the tools in effect, else that of the answer format."""
    if chosen.tools:
        required = chosen.choice == "required"
        return new_constraint("tool_call_required" if required else "tool_call", chosen.tools)
    return answer.constraint
