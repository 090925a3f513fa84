"""What a chat in the terminal begins with: messages, tools, results. Imports nothing heavy."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.generate.chat_request import MODEL, Message, converted, read_body
from dsinfer_jax.generate.prompt_files import PromptError, read_json

_RESULT_FIELDS = {"name", "arguments", "result"}


@dataclass(frozen=True)
class ToolResult:
    """One row of the table of results.

    Attributes:
        name: of the tool.
        arguments: for which this is the result; None: for all that no earlier row has.
        result: what the tool says.
    """

    name: str
    arguments: dict[str, Any] | None
    result: str


@dataclass(frozen=True)
class Tools:
    """The tools of a chat, as Chat Completions declares them, and results known beforehand."""

    declarations: list[dict[str, Any]] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)

    def result(self, name: str, arguments: Any) -> str | None:
        """The result of a call, from the first row that has it; None: no row does."""
        for row in self.results:
            if row.name == name and row.arguments in (None, arguments):
                return row.result
        return None


@dataclass(frozen=True)
class ChatStart:
    """A chat before its first message.

    Attributes:
        messages: Chat Completions messages that came before.
        tools: may be called.
        params: how to answer.
    """

    messages: list[Message]
    tools: Tools
    params: SamplingParams


def read_chat_start(
    system: str | None, tools_file: str | None, chat_file: str | None, params: SamplingParams
) -> ChatStart:
    """The chat that the options ask for.

    Args:
        system: the system message, in place of that of the file.
        tools_file: see `docs/generate.md`.
        chat_file: a list of messages to go on from.

    Raises:
        PromptError: a file that cannot be used.
    """
    messages = [] if chat_file is None else _read_messages(Path(chat_file))
    tools = Tools() if tools_file is None else _read_tools(Path(tools_file))
    if system is not None:
        messages = with_system(messages, system)
    return ChatStart(messages, tools, params)


def with_system(messages: list[Message], text: str) -> list[Message]:
    """The messages with another system message in front, or without one if the text is empty."""
    if messages and messages[0]["role"] == "system":
        messages = messages[1:]
    return [{"role": "system", "content": text}, *messages] if text else messages


def _read_messages(path: Path) -> list[Message]:
    body = read_body(path)
    others = sorted(body.keys() - {"messages", "model"})
    if others:
        raise PromptError(
            f"{path} has the field {others[0]!r}, but with --interactive it may hold messages only"
        )
    request = converted(body, str(path))
    if any(message.image_sources for message in request.conversation.messages):
        raise PromptError(f"{path} has images, which the text model cannot read; remove them")
    messages: list[Message] = body["messages"]
    return messages


def _read_tools(path: Path) -> Tools:
    """A list of tools, or an object with `tools` and `results`."""
    value = read_json(path)
    if isinstance(value, list):
        value = {"tools": value}
    if not isinstance(value, dict) or not {"tools"} <= value.keys() <= {"tools", "results"}:
        raise PromptError(f"{path} must hold a list of tools, or an object with tools and results")
    tools, rows = value["tools"], value.get("results", [])
    request = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "tools": tools}
    known = {tool.name for tool in converted(request, str(path)).conversation.tools}
    if not isinstance(rows, list):
        raise PromptError(f"{path} has results that are not a list")
    results = [_result(row, known, f"{path}, result {place}") for place, row in enumerate(rows)]
    return Tools(tools or [], results)


def _result(row: Any, known: set[str], place: str) -> ToolResult:
    if not isinstance(row, dict) or not {"name", "result"} <= row.keys() <= _RESULT_FIELDS:
        raise PromptError(f"{place} must be an object with name, result and perhaps arguments")
    name, arguments, result = row["name"], row.get("arguments"), row["result"]
    if name not in known:
        raise PromptError(f"{place} is of {name!r}, which is not among the tools")
    if not isinstance(arguments, dict | None):
        raise PromptError(f"{place} has arguments that are not an object")
    if not isinstance(result, str):
        result = json.dumps(result, ensure_ascii=False)
    return ToolResult(name, arguments, result)
