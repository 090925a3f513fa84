"""The input items of the Responses dialect (recipe.md 2.12).

Reasoning, answers and calls that follow each other are one assistant message. The reference keeps
calls and outputs in the order of their ids, not in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
)
from dsinfer_jax.recipe.image_references import UNSUPPORTED_IMAGE, image_at, input_url
from dsinfer_jax.recipe.json_values import quote, write_compact
from dsinfer_jax.recipe.responses_tools import (
    TOOL_SEARCH,
    DeclaredTools,
    full_name,
    loaded_tools,
)
from dsinfer_jax.recipe.settings import empty_string
from dsinfer_jax.recipe.values import conversion_error

Body = dict[str, Any]

UNSUPPORTED_DOCUMENT = "[Unsupported Document]"


class InputReader:
    """Converts items in order. ``loaded`` are the tools that searches of the history found."""

    def __init__(
        self,
        version: ModelVersion,
        thinking: bool,
        options: ConversionOptions,
        declared: DeclaredTools,
    ) -> None:
        self._is_v41 = version is ModelVersion.DeepseekV41Flash
        self._thinking = thinking
        self._declared = declared
        self._placeholder = options._special_tokens._image
        self._messages: list[Message] = []
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: dict[str, ToolCall] = {}
        self._outputs: dict[str, Message] = {}
        self._found: list[list[ToolDefinition]] = []
        self._has_assistant = False
        self._known_ids: set[str] = set()
        self._answered_ids: set[str] = set()
        self._found_tools: dict[int, list[ToolDefinition]] = {}
        self.loaded: list[ToolDefinition] = []

    def read(self, items: Sequence[Body]) -> list[Message]:
        """The converted messages."""
        readers: dict[str, Callable[[int, Body], None]] = {
            "message": self._read_message,
            "reasoning": self._read_reasoning,
            "function_call": self._read_function_call,
            "custom_tool_call": self._read_custom_call,
            "function_call_output": self._read_output,
            "custom_tool_call_output": self._read_output,
        }
        if self._is_v41:
            readers["tool_search_call"] = self._read_search_call
            readers["tool_search_output"] = self._read_search_output
        # All tools that were found are checked before any message is.
        self._found_tools = {
            index: self._declared.load(item["tools"], f"input[{index}].tools")
            for index, item in enumerate(items)
            if item["type"] == "tool_search_output" and self._is_v41
        }
        for index, item in enumerate(items):
            reader = readers.get(item["type"])
            if reader is not None:
                reader(index, item)
        self._end_turn()
        return self._messages

    def _read_message(self, index: int, item: Body) -> None:
        role, content = item["role"], item["content"]
        self._end_calls()
        if role == "assistant":
            self._has_assistant = True
            text = self._assistant_text(index, content)
            if text:
                self._texts.append(text)
            return
        self._end_turn()
        # V4 hears developers as users.
        is_user = role == "user" or (role == "developer" and not self._is_v41)
        new = new_user_message if is_user else new_system_message
        if isinstance(content, str):
            self._messages.append(new(content))
        else:
            self._messages.append(new(*self._content(content, index, "content")))

    def _read_reasoning(self, index: int, item: Body) -> None:
        self._end_calls()
        text = "\n".join([part["text"] for part in item.get("content") or ()])
        if not text:
            return
        if self._texts:
            self._end_turn()
        self._has_assistant = True
        self._thoughts.append(text)

    def _read_function_call(self, index: int, item: Body) -> None:
        name, namespace = item["name"], item.get("namespace")
        if namespace is not None:
            name = full_name(namespace, name, self._is_v41)
        self._add_call(index, item, name, item["arguments"])

    def _read_custom_call(self, index: int, item: Body) -> None:
        self._add_call(index, item, item["name"], f'{{"input":{quote(item["input"])}}}')

    def _read_search_call(self, index: int, item: Body) -> None:
        self._add_call(index, item, TOOL_SEARCH, write_compact(item["arguments"]))

    def _add_call(self, index: int, item: Body, name: str, arguments: str) -> None:
        call_id = item["call_id"]
        if not call_id:
            raise empty_string(f"input[{index}].call_id")
        if self._calls and len(self._outputs) == len(self._calls):
            self._end_turn()
        if call_id in self._known_ids:
            raise conversion_error(f"Duplicate 'call_id': {call_id}.")
        self._known_ids.add(call_id)
        self._has_assistant = True
        self._calls[call_id] = new_tool_call(call_id, name, arguments)

    def _read_output(self, index: int, item: Body) -> None:
        output = item.get("output")
        content: Content = (output or "", (), ())
        if isinstance(output, list):
            content = self._content(output, index, "output")
        text, images, spans = content
        if item.get("call_id") is None:  # stands for itself
            self._end_turn()
            self._messages.append(new_tool_message(text, None, images, spans))
            return
        call_id = self._check_output(index, item)
        self._outputs[call_id] = new_tool_message(text, call_id, images, spans)

    def _read_search_output(self, index: int, item: Body) -> None:
        call_id = self._check_output(index, item)
        found = self._found_tools[index]
        text = loaded_tools(item["tools"], f"input[{index}]")
        self._outputs[call_id] = new_tool_message(text, call_id)
        if found:
            self._found.append(found)
            self.loaded += found

    def _check_output(self, index: int, item: Body) -> str:
        call_id = item["call_id"]
        if not call_id:
            raise empty_string(f"input[{index}].call_id")
        if call_id in self._answered_ids:
            raise conversion_error(f"Duplicate tool output for call_id: {call_id}.")
        if call_id not in self._calls:
            raise conversion_error(f"No tool call found for tool output with call_id {call_id}.")
        self._answered_ids.add(call_id)
        return call_id

    def _end_calls(self) -> None:
        if self._calls:
            self._end_turn()

    def _end_turn(self) -> None:
        """Write the assistant message that is being collected, its outputs, and found tools."""
        if not self._has_assistant:
            return
        calls = [self._calls[call_id] for call_id in sorted(self._calls)]
        for call in calls:
            if call._id not in self._outputs:
                # With several missing the reference names any of them.
                raise conversion_error(f"No tool output found for tool call {call._id}.")
        reasoning = "\n".join(self._thoughts) if self._thoughts and self._thinking else None
        text = "\n\n".join(self._texts)
        self._messages.append(new_assistant_message(text, reasoning, calls or None))
        self._messages += [self._outputs[call._id] for call in calls]
        self._messages += [new_system_message("", tools=tools) for tools in self._found]
        self._thoughts, self._texts, self._has_assistant = [], [], False
        self._calls, self._outputs, self._found = {}, {}, []

    def _assistant_text(self, index: int, content: str | list[Body]) -> str:
        if isinstance(content, str):
            return content
        if any(self._image_urls(content, index, "content")):
            raise conversion_error(f"input[{index}]: Image in assistant message is unsupported")
        return "\n\n".join([_text(block) for block in content])

    def _content(self, blocks: Sequence[Body], index: int, field: str) -> Content:
        urls = self._image_urls(blocks, index, field)
        parts: list[Part] = [
            _text(block)
            if url is None
            else image_at(url, block.get("detail") or "high", f"input[{index}]")
            for block, url in zip(blocks, urls)
        ]
        return join_parts(parts, self._placeholder)

    def _image_urls(self, blocks: Sequence[Body], index: int, field: str) -> list[str | None]:
        """The image URL of each block; all references are looked at before any URL."""
        return [
            input_url(block, f"input[{index}].{field}[{position}]")
            if block["type"] == "input_image" and self._is_v41
            else None
            for position, block in enumerate(blocks)
        ]


def _text(block: Body) -> str:
    """What stands in the prompt for a block that is no image there."""
    if block["type"] == "input_image":
        return UNSUPPORTED_IMAGE
    return UNSUPPORTED_DOCUMENT if block["type"] == "input_file" else block["text"]
