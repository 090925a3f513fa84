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


def calls_block(calls: Sequence[ToolCall], dsml: str, write: Write, *, spaced: bool) -> list[str]:
    """The calls as alternating pieces.

    In the `spaced` markup of V4.1 a blank follows every `dsml`, and a call without parameters has
    an empty line.
    """
    blank = " " if spaced else ""
    block = " calls" if spaced else "tool_calls"
    plain = ["\n\n<"]
    text = f"{block}>\n"
    for call in calls:
        plain.append(text + "<")
        text = f'{blank}invoke name="{call._name}">\n'
        parameters = call_parameters(call._arguments)
        for name, value in parameters.items():
            plain.append(text + "<")
            plain.append(f"{blank}parameter {_parameter(name, value, write)}</")
            text = f"{blank}parameter>\n"
        if spaced and not parameters:
            text += "\n"
        plain.append(text + "</")
        text = f"{blank}invoke>\n"
    plain.append(text + "</")
    plain.append(f"{block}>")
    return _between(plain, dsml)


def _parameter(name: str, value: Any, write: Write) -> str:
    if type(value) is str:
        return f'name="{name}" string="true">{value}'
    return f'name="{name}" string="false">{write(value)}'


def _between(plain: list[str], control: str) -> list[str]:
    pieces = [control] * (2 * len(plain) - 1)
    pieces[0::2] = plain
    return pieces
