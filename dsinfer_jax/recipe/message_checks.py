"""Checks of converted messages that the dialects share (recipe.md 2.11)."""

from __future__ import annotations

from collections.abc import Sequence

from dsinfer_jax.recipe.conversation import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    UserMessage,
    new_system_message,
)
from dsinfer_jax.recipe.conversion_options import ConversionOptions, ReasoningContentBehavior
from dsinfer_jax.recipe.values import conversion_error

# Where the mark of a call made without reasoning stands in ids of chat and of Messages.
_UNTHINKING_MARK = "ET_"
_MARK_POSITIONS = (8, 6)


def mentions_json(messages: Sequence[Message]) -> bool:
    """Whether some content holds the word json, in any case."""
    return any("json" in message._content.lower() for message in messages)


def settle_reasoning(
    messages: Sequence[Message], options: ConversionOptions, tools_are_declared: bool, field: str
) -> None:
    """In thinking mode: give answers without reasoning an empty one, or refuse those that count."""
    if options._reasoning_content_behavior is ReasoningContentBehavior.Reject:
        _check_reasoning_came_back(messages, tools_are_declared, field)
    for message in messages:
        if isinstance(message, AssistantMessage) and message._reasoning_content is None:
            message._reasoning_content = ""


def _check_reasoning_came_back(
    messages: Sequence[Message], tools_are_declared: bool, field: str
) -> None:
    """Refuse answers after the last user message that lost their reasoning.

    Only answers with calls count, or all of them when the request declares tools; a call that says
    by its id that it was made without reasoning excuses its message.
    """
    for message in reversed(messages):
        if type(message) is UserMessage:
            return
        if type(message) is not AssistantMessage or message._reasoning_content is not None:
            continue
        calls = message._tool_calls or ()
        if (calls or tools_are_declared) and not any(map(_made_without_reasoning, calls)):
            raise conversion_error(f"{field} in the thinking mode must be passed back to the API.")


def without_added_tools(messages: Sequence[Message]) -> list[Message]:
    """The messages when no tool may be called; what only added tools is left out."""
    kept: list[Message] = []
    for message in messages:
        if isinstance(message, SystemMessage) and message._tools:
            if not message._content:
                continue
            message = new_system_message(
                message._content, message._image_sources, message._placeholders, []
            )
        kept.append(message)
    return kept


def _made_without_reasoning(call: ToolCall) -> bool:
    return any(call._id.startswith(_UNTHINKING_MARK, position) for position in _MARK_POSITIONS)
