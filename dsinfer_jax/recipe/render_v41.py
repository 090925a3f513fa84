"""The V4.1 prompt of a conversation (recipe.md 3.6)."""

from __future__ import annotations

from collections.abc import Sequence

from dsinfer_jax.recipe.conversation import (
    AssistantMessage,
    Conversation,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
    new_system_message,
)
from dsinfer_jax.recipe.image_sources import ImageSource
from dsinfer_jax.recipe.json_values import write_spaced
from dsinfer_jax.recipe.prompt_text import (
    EFFORT_V41,
    JSON_OBJECT_V41,
    REQUIRED_OPENING_V41,
    TOOL_RESULT_CLOSE,
    TOOL_RESULT_OPEN,
    TOOLS_HEAD_V41,
    TOOLS_TAIL,
    UPDATED_TOOLS_HEAD,
    template,
)
from dsinfer_jax.recipe.rendered_prompt import (
    RenderedPrompt,
    new_rendered_prompt,
    tools_in_effect,
    write_answer_opening,
    write_content,
    write_pieces,
    write_response_format,
)
from dsinfer_jax.recipe.special_tokens import SpecialTokens
from dsinfer_jax.recipe.tool_markup import calls_block, tool_lines


class RendererV41:
    """Renders conversations with one set of spellings."""

    def __init__(self, tokens: SpecialTokens) -> None:
        self._tokens = tokens
        self._tools_head = template(TOOLS_HEAD_V41, tokens)
        self._required_opening = template(REQUIRED_OPENING_V41, tokens)

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """The prompt, its marks and its images."""
        tokens = self._tokens
        with_tools = tools_in_effect(conversation)
        thinking = conversation._thinking_mode
        messages = _with_head(conversation, with_tools)
        parts = [""]
        images: list[ImageSource] = []
        if tokens._bos:
            parts += (tokens._bos, "")
        if messages and type(messages[0]) is SystemMessage:
            effort = EFFORT_V41[conversation._reasoning_effort] if thinking else ""
            parts += (tokens._system, effort)
            write_content(parts, images, messages[0])
            self._write_head(parts, conversation, with_tools)
            _write_updated_tools(parts, messages[0])
        elif messages and thinking:
            parts += (tokens._system, EFFORT_V41[conversation._reasoning_effort])
        self._write_messages(parts, images, messages, thinking, with_tools)
        last = messages[-1] if messages else None
        write_answer_opening(parts, conversation, last, tokens, self._required_opening)
        return new_rendered_prompt(parts, images)

    def _write_head(self, parts: list[str], conversation: Conversation, with_tools: bool) -> None:
        """Tools block and response format, at the end of the first system message."""
        if with_tools:
            write_pieces(parts, self._tools_head)
            shown = [tool for tool in conversation._tools if not tool._defer_loading]
            parts[-1] += tool_lines(shown, write_spaced) + "\n" + TOOLS_TAIL
        write_response_format(parts, conversation, JSON_OBJECT_V41, write_spaced)

    def _write_messages(
        self,
        parts: list[str],
        images: list[ImageSource],
        messages: Sequence[Message],
        thinking: bool,
        with_tools: bool,
    ) -> None:
        """Every message but a leading system message."""
        tokens = self._tokens
        call_positions: dict[str, int] = {}
        index = 1 if messages and type(messages[0]) is SystemMessage else 0
        while index < len(messages):
            message = messages[index]
            kind = type(message)
            end = index + 1
            if kind is UserMessage or kind is ToolMessage:
                while end < len(messages) and type(messages[end]) in (UserMessage, ToolMessage):
                    end += 1
                parts += (tokens._user, "")
                _write_group(parts, images, messages[index:end], call_positions)
            elif isinstance(message, AssistantMessage):
                if message._tool_calls:
                    calls = reversed(list(enumerate(message._tool_calls)))
                    call_positions = {call._id: position for position, call in calls}
                keep_reasoning = thinking and (with_tools or (message._prefix and index > 0))
                self._write_assistant(parts, message, keep_reasoning)
            elif isinstance(message, SystemMessage):
                parts += (tokens._system, "")
                write_content(parts, images, message)
                _write_updated_tools(parts, message)
            else:
                while end < len(messages) and type(messages[end]) is LatestReminderMessage:
                    end += 1
                parts += (tokens._latest_reminder, message._content)
            index = end

    def _write_assistant(
        self, parts: list[str], message: AssistantMessage, keep_reasoning: bool
    ) -> None:
        tokens = self._tokens
        calls = message._tool_calls
        content = message._content
        reasoning = message._reasoning_content or ""
        closes = bool(content or calls or not message._prefix)
        parts += (tokens._assistant, "")
        # Nothing is opened where nothing, not even an end, would stand in it.
        if keep_reasoning and (reasoning or tokens._thinking_end or message._prefix):
            parts += (tokens._thinking_start, reasoning)
            if closes:
                parts += (tokens._thinking_end, content)
        else:
            parts += (tokens._thinking_end, content)
        if calls:
            write_pieces(parts, calls_block(calls, tokens._dsml, write_spaced, spaced=True))
        if not message._prefix:
            parts += (tokens._eos, "")


def _with_head(conversation: Conversation, with_tools: bool) -> Sequence[Message]:
    """The messages, with an empty system message in front where the head needs a place."""
    messages = conversation._messages
    if messages and type(messages[0]) is SystemMessage:
        return messages
    if with_tools or conversation._response_format in ("json_object", "json_schema"):
        return [new_system_message(""), *messages]
    return messages


def _write_group(
    parts: list[str],
    images: list[ImageSource],
    group: Sequence[Message],
    call_positions: dict[str, int],
) -> None:
    """User messages and tool results that follow each other, results in the order of the calls."""
    if len(group) > 1 and call_positions:
        group = _in_call_order(group, call_positions)
    for position, message in enumerate(group):
        if position:
            parts[-1] += "\n\n"
        if type(message) is UserMessage:
            write_content(parts, images, message)
        else:
            parts[-1] += TOOL_RESULT_OPEN
            write_content(parts, images, message)
            parts[-1] += TOOL_RESULT_CLOSE


def _in_call_order(group: Sequence[Message], call_positions: dict[str, int]) -> Sequence[Message]:
    places = [place for place, message in enumerate(group) if message._tool_call_id is not None]
    results = sorted(
        (group[place] for place in places),
        key=lambda message: call_positions.get(message._tool_call_id or "", 0),
    )
    ordered = list(group)
    for place, result in zip(places, results):
        ordered[place] = result
    return ordered


def _write_updated_tools(parts: list[str], message: Message) -> None:
    if isinstance(message, SystemMessage) and message._tools:
        parts[-1] += UPDATED_TOOLS_HEAD + tool_lines(message._tools, write_spaced)
