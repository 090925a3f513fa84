"""A rendered prompt: text in which every control token is marked (recipe.md 4.1).

While it is written, a prompt is a list of strings that alternates: plain text, control token,
plain text, ..., plain text. Plain pieces may be empty; two of them never stand side by side, so
the pieces between control tokens are exactly the stretches that are encoded in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsinfer_jax.recipe.conversation import AssistantMessage, Conversation, Message
from dsinfer_jax.recipe.image_sources import ImageSource
from dsinfer_jax.recipe.prompt_text import RESPONSE_FORMAT_HEAD
from dsinfer_jax.recipe.special_tokens import SpecialTokens
from dsinfer_jax.recipe.values import OutputOnly


class RenderedPrompt(OutputOnly):
    """The prompt, the places of its control tokens, and the images its placeholders stand for."""

    __slots__ = ("_image_sources", "_parts")
    _parts: list[str]
    _image_sources: Sequence[ImageSource]

    @property
    def prompt(self) -> str:
        """The text. Encoding it as a whole loses the protection of the marks: use ``encode``."""
        return "".join(self._parts)

    @property
    def special_ranges(self) -> list[tuple[int, int]]:
        """Half-open ``(start, end)`` code point ranges of the control tokens, ascending."""
        ranges = []
        start = 0
        parts = iter(self._parts)
        for plain, control in zip(parts, parts):
            start += len(plain)
            end = start + len(control)
            ranges.append((start, end))
            start = end
        return ranges

    @property
    def image_sources(self) -> list[ImageSource]:
        """The images, in prompt order."""
        return list(self._image_sources)


def new_rendered_prompt(parts: list[str], image_sources: Sequence[ImageSource]) -> RenderedPrompt:
    """A prompt of alternating ``parts``. Control tokens spelled empty are taken out."""
    prompt = object.__new__(RenderedPrompt)
    prompt._parts = parts if all(parts[1::2]) else _without_empty_controls(parts)
    prompt._image_sources = image_sources
    return prompt


def write_pieces(parts: list[str], pieces: Sequence[str]) -> None:
    """Append alternating ``pieces`` to alternating ``parts``."""
    parts[-1] += pieces[0]
    parts += pieces[1:]


def write_content(parts: list[str], images: list[ImageSource], message: Message) -> None:
    """Append the content of ``message`` and its images."""
    if message._placeholders:
        write_pieces(parts, _content_pieces(message))
    else:
        parts[-1] += message._content
    images += message._image_sources


def tools_in_effect(conversation: Conversation) -> bool:
    """Whether the model may call a tool of the conversation."""
    return bool(conversation._tools) and conversation._tool_choice != "none"


def write_response_format(
    parts: list[str], conversation: Conversation, json_object: str, write: Callable[[Any], str]
) -> None:
    """Append what the model is told of its answer: ``json_object``, a schema or nothing."""
    if conversation._response_format == "json_object":
        parts[-1] += json_object
    elif conversation._response_format == "json_schema":
        parts[-1] += RESPONSE_FORMAT_HEAD + write(conversation._response_schema)


def write_answer_opening(
    parts: list[str],
    conversation: Conversation,
    last: Message | None,
    tokens: SpecialTokens,
    required_call: Sequence[str],
) -> None:
    """Append the beginning of the answer, unless ``last`` is to be continued.

    ``required_call``: the pieces that open the calls where one is required.
    """
    if not (isinstance(last, AssistantMessage) and last._prefix):
        thinking = conversation._thinking_mode
        opening = tokens._thinking_start if thinking else tokens._thinking_end
        parts += (tokens._assistant, "", opening, "")
    if conversation._tool_choice == "required" and tools_in_effect(conversation):
        write_pieces(parts, required_call)


def _content_pieces(message: Message) -> list[str]:
    """The content of ``message`` as alternating text and image placeholders."""
    content = message._content
    pieces: list[str] = []
    end = 0
    for start, stop in message._placeholders:
        pieces += (content[end:start], content[start:stop])
        end = stop
    pieces.append(content[end:])
    return pieces


def _without_empty_controls(parts: list[str]) -> list[str]:
    kept = [parts[0]]
    for control, plain in zip(parts[1::2], parts[2::2]):
        if control:
            kept += (control, plain)
        else:
            kept[-1] += plain
    return kept
