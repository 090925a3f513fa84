"""The V4 prompt of a conversation (recipe.md 3.7)."""

from __future__ import annotations

from collections.abc import Sequence

from dsinfer_jax.recipe.conversation import (
    AssistantMessage,
    Conversation,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from dsinfer_jax.recipe.image_sources import ImageSource
from dsinfer_jax.recipe.json_values import write_spaced_plain_floats
from dsinfer_jax.recipe.prompt_text import (
    EFFORT_V4,
    JSON_OBJECT_V4,
    REQUIRED_OPENING_V4,
    TOOL_RESULT_CLOSE,
    TOOL_RESULT_OPEN,
    TOOLS_HEAD_V4,
    TOOLS_TAIL,
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

Group = list[Message]


class RendererV4:
    """Renders conversations with one set of spellings."""

    def __init__(self, tokens: SpecialTokens) -> None:
        self._tokens = tokens
        self._tools_head = template(TOOLS_HEAD_V4, tokens)
        self._required_opening = template(REQUIRED_OPENING_V4, tokens)

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """The prompt, its marks and its images."""
        tokens = self._tokens
        with_tools = tools_in_effect(conversation)
        thinking = conversation._thinking_mode
        parts = ["", tokens._bos, EFFORT_V4[conversation._reasoning_effort] if thinking else ""]
        images: list[ImageSource] = []
        # An empty system message loses its images, an empty user message does not.
        systems = [m for m in conversation._messages if type(m) is SystemMessage and m._content]
        _write_joined(parts, images, systems)
        self._write_head(parts, conversation, with_tools)
        groups = _sorted_results(_groups(conversation._messages))
        previous: type[Message] | None = None
        for position, group in enumerate(groups):
            first = group[0]
            if isinstance(first, AssistantMessage):
                last = position == len(groups) - 1
                self._write_assistant(parts, first, thinking, with_tools, last)
            elif type(first) is ToolMessage:
                self._write_turn(parts, previous is ToolMessage)
                parts[-1] += TOOL_RESULT_OPEN
                write_content(parts, images, first)
                parts[-1] += TOOL_RESULT_CLOSE
            elif type(first) is UserMessage:
                self._write_turn(parts, previous in (ToolMessage, UserMessage))
                _write_joined(parts, images, group)
            else:
                parts += (tokens._latest_reminder, first._content)
            previous = type(first)
        final = groups[-1][0] if groups else None
        write_answer_opening(parts, conversation, final, tokens, self._required_opening)
        return new_rendered_prompt(parts, images)

    def _write_head(self, parts: list[str], conversation: Conversation, with_tools: bool) -> None:
        if with_tools:
            write_pieces(parts, self._tools_head)
            shown = [tool for tool in conversation._tools if not tool._defer_loading]
            lines = tool_lines(shown, write_spaced_plain_floats)
            parts[-1] += lines + "\n" + TOOLS_TAIL if shown else TOOLS_TAIL
        write_response_format(parts, conversation, JSON_OBJECT_V4, write_spaced_plain_floats)

    def _write_turn(self, parts: list[str], continued: bool) -> None:
        if continued:
            parts[-1] += "\n\n"
        else:
            parts += (self._tokens._user, "")

    def _write_assistant(
        self,
        parts: list[str],
        message: AssistantMessage,
        thinking: bool,
        with_tools: bool,
        last: bool,
    ) -> None:
        tokens = self._tokens
        reasoning = message._reasoning_content
        parts += (tokens._assistant, "")
        if reasoning is not None and (message._prefix or with_tools):
            parts += (tokens._thinking_start, reasoning)
        if not (thinking and message._prefix and not message._content):
            parts += (tokens._thinking_end, "")
        parts[-1] += message._content
        if message._tool_calls is not None:
            calls = sorted(message._tool_calls, key=lambda call: call._id)
            block = calls_block(calls, tokens._dsml, write_spaced_plain_floats, spaced=False)
            write_pieces(parts, block)
        if not (message._prefix and last):
            parts += (tokens._eos, "")


def _groups(messages: Sequence[Message]) -> list[Group]:
    """Messages without systems; user messages that follow each other are one group."""
    groups: list[Group] = []
    for message in messages:
        kind = type(message)
        if kind is SystemMessage:
            continue
        if kind is UserMessage and groups and type(groups[-1][0]) is UserMessage:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _sorted_results(groups: list[Group]) -> list[Group]:
    """For an assistant message with n calls, the n groups after it in the order of the ids."""
    counts = [len(group[0]._tool_calls or ()) for group in groups]
    for position, count in enumerate(counts):
        start = position + 1
        if count and start + count <= len(groups):
            groups[start : start + count] = sorted(groups[start : start + count], key=_result_key)
    return groups


def _result_key(group: Group) -> tuple[int, str]:
    message = group[0]
    if type(message) is not ToolMessage:
        return (2, "")
    return (0, "") if message._tool_call_id is None else (1, message._tool_call_id)


def _write_joined(parts: list[str], images: list[ImageSource], messages: Sequence[Message]) -> None:
    """Contents that are not empty, with an empty line between them."""
    written = False
    for message in messages:
        if written and message._content:
            parts[-1] += "\n\n"
        write_content(parts, images, message)
        written = written or bool(message._content)
