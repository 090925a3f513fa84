"""Calls and tool definitions as a prompt shows them (recipe.md 3.1 to 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dsinfer_jax.recipe.conversation import ToolCall, ToolDefinition
from dsinfer_jax.recipe.json_text import JsonSyntaxError, read_json
from dsinfer_jax.recipe.json_values import quote

Write = Callable[[Any], str]


def tool_line(tool: ToolDefinition, write: Write) -> str:
    """One tool as one line of JSON; ``strict`` and ``defer_loading`` are never shown."""
    name, description = quote(tool._name), quote(tool._description or "")
    parameters = write(tool._parameters)
    return f'{{"name": {name}, "description": {description}, "parameters": {parameters}}}'


def tool_lines(tools: Iterable[ToolDefinition], write: Write) -> str:
    """The lines of ``tools``, joined with newlines."""
    return "\n".join([tool_line(tool, write) for tool in tools])


def call_parameters(arguments: str) -> dict[str, Any]:
    """The parameters of a call: the JSON object, or one ``arguments`` with the text as it is."""
    try:
        parameters = read_json(arguments)
    except JsonSyntaxError:
        return {"arguments": arguments}
    return parameters if type(parameters) is dict else {"arguments": arguments}


def calls_block_v41(calls: Sequence[ToolCall], dsml: str, write: Write) -> list[str]:
    """The block of V4.1 as alternating pieces; a call without parameters has an empty line."""
    plain = ["\n\n<"]
    text = " calls>\n"
    for call in calls:
        plain.append(text + "<")
        text = f' invoke name="{call._name}">\n'
        parameters = call_parameters(call._arguments)
        for name, value in parameters.items():
            plain.append(text + "<")
            plain.append(f" parameter {_parameter(name, value, write)}</")
            text = " parameter>\n"
        if not parameters:
            text += "\n"
        plain.append(text + "</")
        text = " invoke>\n"
    plain.append(text + "</")
    plain.append(" calls>")
    return _between(plain, dsml)


def calls_block_v4(calls: Sequence[ToolCall], dsml: str, write: Write) -> list[str]:
    """The block of V4 as alternating pieces."""
    plain = ["\n\n<"]
    text = "tool_calls>\n"
    for call in calls:
        plain.append(text + "<")
        text = f'invoke name="{call._name}">\n'
        for name, value in call_parameters(call._arguments).items():
            plain.append(text + "<")
            plain.append(f"parameter {_parameter(name, value, write)}</")
            text = "parameter>\n"
        plain.append(text + "</")
        text = "invoke>\n"
    plain.append(text + "</")
    plain.append("tool_calls>")
    return _between(plain, dsml)


def _parameter(name: str, value: Any, write: Write) -> str:
    if type(value) is str:
        return f'name="{name}" string="true">{value}'
    return f'name="{name}" string="false">{write(value)}'


def _between(plain: list[str], control: str) -> list[str]:
    pieces = [control] * (2 * len(plain) - 1)
    pieces[0::2] = plain
    return pieces
