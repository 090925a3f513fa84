"""The messages of the Messages dialect and their content blocks (recipe.md 2.13)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dsinfer_jax.recipe.content_parts import Content, Part, join_parts
from dsinfer_jax.recipe.conversation import (
    Message,
    ToolCall,
    ToolDefinition,
    new_assistant_message,
    new_system_message,
    new_tool_call,
    new_tool_message,
    new_user_message,
)
from dsinfer_jax.recipe.conversion_options import (
    ConversionOptions,
    ModelVersion,
    WebSearchBehavior,
)
from dsinfer_jax.recipe.image_references import UNSUPPORTED_IMAGE, image_of_source
from dsinfer_jax.recipe.json_values import write_spaced_plain_floats
from dsinfer_jax.recipe.values import ConversionError, conversion_error

Body = dict[str, Any]

_CORRESPONDING = (
    "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
)


class MessagesReader:
    """Converts messages in order; checks roles of blocks and that calls and results pair up."""

    def __init__(
        self,
        version: ModelVersion,
        thinking: bool,
        options: ConversionOptions,
        declared: Sequence[ToolDefinition],
    ) -> None:
        self._is_v41 = version is ModelVersion.DeepseekV41Flash
        self._thinking = thinking
        self._drops_search = options._messages_web_search is WebSearchBehavior.Drop
        self._placeholder = options._special_tokens._image
        self._tools = {tool._name: tool for tool in declared}
        self._messages: list[Message] = []
        self._open_ids: set[str] = set()
        self._index = 0

    def read(self, bodies: Sequence[Body]) -> list[Message]:
        """The converted messages."""
        readers = {
            "user": self._read_user,
            "assistant": self._read_assistant,
            "system": self._read_system,
        }
        for self._index, body in enumerate(bodies):
            role, content = body["role"], body["content"]
            if self._open_ids and (role != "user" or type(content) is str):
                raise self._unanswered(f"messages.{self._index}: ")
            if role != "system" and type(content) is not str and not content:
                raise conversion_error(
                    f"messages.{self._index}: all messages must have non-empty content"
                )
            readers[role](content)
        if self._open_ids:
            raise self._unanswered(f"messages.{self._index}:")
        return self._messages

    def _unanswered(self, place: str) -> ConversionError:
        ids = ", ".join(sorted(self._open_ids))
        return conversion_error(
            f"{place}`tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{ids}. {_CORRESPONDING}"
        )

    def _check_role(self, block: Body, role: str) -> None:
        """Refuse a block that messages of ``role`` cannot hold."""
        kind = block["type"]
        place = f"messages.{self._index}"
        if kind == "thinking" and role != "assistant":
            raise conversion_error(
                f"{place}.content: thinking blocks may only be in `assistant` messages"
            )
        allowed = _ALLOWED_ROLES.get(kind, role)
        if role != allowed:
            named = "tool_use" if kind == "server_tool_use" else kind
            raise conversion_error(f"{place}: `{named}` blocks can only be in `{allowed}` messages")
        if kind in _SERVER_BLOCKS and not self._drops_search:
            raise conversion_error("Unsupported content block: server tools are not supported")

    def _read_user(self, content: str | list[Body]) -> None:
        if isinstance(content, str):
            self._messages.append(new_user_message(content))
            return
        answered: set[str] = set()
        found: list[ToolDefinition] = []
        for position, block in enumerate(content):
            self._check_role(block, "user")
            if block["type"] == "tool_result":
                self._read_result(position, block, answered, found)
                continue
            if self._open_ids:
                raise self._unanswered(f"messages.{self._index}: ")
            path = f"messages.{self._index}.content[{position}]"
            part = self._part(block, path, path)
            self._messages.append(new_user_message(*self._join([part])))
        if self._open_ids:
            raise self._unanswered(f"messages.{self._index - 1}:")
        if found and self._is_v41:
            self._messages.append(new_system_message("", tools=found))

    def _read_result(
        self, position: int, block: Body, answered: set[str], found: list[ToolDefinition]
    ) -> None:
        call_id = block["tool_use_id"]
        place = f"messages.{self._index}.content.{position}"
        if call_id in answered:
            raise conversion_error(
                f"{place}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {call_id}"
            )
        if call_id not in self._open_ids:
            raise conversion_error(
                f"unexpected `{place}: tool_use_id` found in `tool_result` blocks: {call_id}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the "
                "previous message."
            )
        self._open_ids.remove(call_id)
        answered.add(call_id)
        content = block.get("content")
        if isinstance(content, list):
            # All references are looked up before any image is looked at.
            found += [self._referenced(b, place) for b in content if b["type"] == _REFERENCE]
            parts = [
                block["tool_name"]
                if block["type"] == _REFERENCE
                else self._part(
                    block, f"{place}.tool_result", f"{place}.tool_result.content[{number}]"
                )
                for number, block in enumerate(content)
            ]
            self._messages.append(_tool_message(call_id, self._join(parts)))
        else:
            self._messages.append(new_tool_message(content or "", call_id))

    def _referenced(self, block: Body, place: str) -> ToolDefinition:
        tool = self._tools.get(block["tool_name"])
        if tool is None:
            raise conversion_error(
                f"{place}: tool reference '{block['tool_name']}' not found in available tools"
            )
        return tool

    def _read_assistant(self, content: str | list[Body]) -> None:
        if isinstance(content, str):
            self._messages.append(new_assistant_message(content, None, None))
            return
        text = ""
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for position, block in enumerate(content):
            self._check_role(block, "assistant")
            kind = block["type"]
            if kind == "thinking":
                thoughts.append(block["thinking"])
            elif kind == "tool_use":
                calls.append(self._read_call(position, block))
            elif kind not in _SERVER_BLOCKS:
                if self._open_ids:
                    raise self._unanswered(f"messages.{self._index}.{position}: ")
                added = self._assistant_text(position, block)
                text = f"{text}\n\n{added}" if text else added
        reasoning = "\n\n".join(thoughts) if thoughts and self._thinking else None
        self._messages.append(new_assistant_message(text, reasoning, calls or None))

    def _assistant_text(self, position: int, block: Body) -> str:
        if block["type"] == "image" and self._is_v41:
            path = f"messages.{self._index}.content[{position}]"
            image_of_source(block["source"], path, path)
            raise conversion_error("Image in assistant message is unsupported")
        part = self._part(block, "", "")
        assert isinstance(part, str)
        return part

    def _read_call(self, position: int, block: Body) -> ToolCall:
        call_id = block["id"]
        if call_id in self._open_ids:
            raise conversion_error(
                f"messages.{self._index}.content.{position}: `tool_use` ids must be unique"
            )
        self._open_ids.add(call_id)
        return new_tool_call(call_id, block["name"], write_spaced_plain_floats(block["input"]))

    def _read_system(self, content: str | list[Body]) -> None:
        parts: list[Part] = []
        added: list[ToolDefinition] = []
        if isinstance(content, str):
            parts.append(content)
        else:
            for position, block in enumerate(content):
                self._check_role(block, "system")
                if block["type"] == "tool_addition":
                    added.append(self._added_tool(position, block["tool"]["name"]))
                else:
                    path = f"messages.{self._index}"
                    parts.append(self._part(block, path, f"{path}.content[{position}]"))
        text, images, spans = self._join(parts)
        if self._is_v41:
            self._messages.append(new_system_message(text, images, spans, added or None))
        elif text:
            reminder = f"<system-reminder>\n{text}\n</system-reminder>"
            self._messages.append(new_user_message(reminder))

    def _added_tool(self, position: int, name: str) -> ToolDefinition:
        tool = self._tools.get(name)
        if tool is None:
            raise conversion_error(
                f"messages.{self._index}.content.{position}: `tool_addition` references "
                f"unknown tool '{name}'"
            )
        return tool

    def _part(self, block: Body, path: str, block_path: str) -> Part:
        """A text, image or document block as text or image; faults name ``block_path``."""
        kind = block["type"]
        if kind == "text":
            return block["text"]
        if kind == "document":
            media_type = block["source"].get("media_type")
            return f"[Unsupported document type: {media_type or 'unknown'}]"
        if not self._is_v41:
            return UNSUPPORTED_IMAGE
        return image_of_source(block["source"], path, block_path)

    def _join(self, parts: Iterable[Part]) -> Content:
        return join_parts(list(parts), self._placeholder)


_REFERENCE = "tool_reference"
_SERVER_BLOCKS = ("server_tool_use", "web_search_tool_result")
_ALLOWED_ROLES = {
    "tool_use": "assistant",
    "server_tool_use": "assistant",
    "web_search_tool_result": "assistant",
    "tool_result": "user",
    "tool_addition": "system",
}


def _tool_message(call_id: str, content: Content) -> Message:
    text, images, spans = content
    return new_tool_message(text, call_id, images, spans)
