"""Which field of a request made which part of its prompt, and what is control and what is text.

    print(explain(body, dialect="chat").to_terminal())

Text of the user is found by marks (``text_marks.py``); the fixed text of the template is named
``template``, tools by their declaration, images by the place of their block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dsinfer_jax.recipe.chat_completions import ChatCompletionRequest
from dsinfer_jax.recipe.conversation import Conversation
from dsinfer_jax.recipe.conversation_request import ConversationRequest
from dsinfer_jax.recipe.conversion_options import ConversionOptions, ModelVersion
from dsinfer_jax.recipe.encoding import DeepseekV4Encoding, DeepseekV41Encoding, control_id
from dsinfer_jax.recipe.messages import MessagesRequest
from dsinfer_jax.recipe.prompt_text import EFFORT_V4, EFFORT_V41
from dsinfer_jax.recipe.rendered_prompt import RenderedPrompt
from dsinfer_jax.recipe.request_body import read_request
from dsinfer_jax.recipe.responses import ResponsesRequest
from dsinfer_jax.recipe.responses_tools import full_name
from dsinfer_jax.recipe.text_marks import Mark, TextMarks
from dsinfer_jax.recipe.tokenizer import Tokenizer

Dialect = Literal["chat", "responses", "messages"]
Kind = Literal["control", "text"]

TEMPLATE = "template"
REQUESTS = {
    "chat": ChatCompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
}
EFFORT_FIELDS = {
    "chat": "reasoning_effort",
    "responses": "reasoning.effort",
    "messages": "output_config.effort",
}
FORMAT_FIELDS = {"chat": "response_format", "responses": "text.format", "messages": ""}
_VALUE = re.compile(r'" string="(?:true|false)">(.*)</\Z', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch ``prompt[start:end]`` from one source."""

    start: int
    end: int
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class ExplainedToken:
    """One token of the prompt and the source of its first character."""

    id: int
    start: int
    end: int
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A prompt, its segments from start to end, and with a tokenizer its tokens."""

    prompt: str
    segments: tuple[Segment, ...]
    tokens: tuple[ExplainedToken, ...] | None

    def to_json(self) -> str:
        """Everything as one JSON object."""
        segments = [
            {
                "start": segment.start,
                "end": segment.end,
                "kind": segment.kind,
                "source": segment.source,
                "text": self.prompt[segment.start : segment.end],
            }
            for segment in self.segments
        ]
        tokens = None
        if self.tokens is not None:
            names = ExplainedToken.__slots__
            tokens = [{name: getattr(token, name) for name in names} for token in self.tokens]
        return json.dumps(
            {"prompt": self.prompt, "segments": segments, "tokens": tokens}, ensure_ascii=False
        )

    def to_terminal(self) -> str:
        """The prompt in colours (control red, template grey, text by source), with a legend."""
        colours: dict[str, int] = {}
        lines = []
        for segment in self.segments:
            text = self.prompt[segment.start : segment.end]
            if segment.kind == "control":
                lines.append(f"\033[1;31m{text}\033[0m")
            elif segment.source == TEMPLATE:
                lines.append(f"\033[90m{text}\033[0m")
            else:
                colour = colours.setdefault(segment.source, 32 + len(colours) % 5)
                lines.append(f"\033[{colour}m{text}\033[0m")
        legend = [f"\033[{colour}m{source}\033[0m" for source, colour in colours.items()]
        return "".join(lines) + "\n\n" + "\n".join(legend)


def explain(
    body: bytes | str | dict[str, Any],
    *,
    dialect: Dialect = "chat",
    options: ConversionOptions | None = None,
    tokenizer: Tokenizer | None = None,
) -> Explanation:
    """Where every part of the prompt of a request comes from.

    With ``tokenizer`` every token is explained too. Raises what reading and converting the request
    raise, and ``RuntimeError`` for a control token that the tokenizer does not have.
    """
    options = options or ConversionOptions()
    kind = REQUESTS[dialect]
    checked = read_request(body, kind._shape)
    text = json.dumps(checked, ensure_ascii=False)
    rendered, request = _render(kind, text, options)
    marks = TextMarks()
    marked = json.dumps(marks.mark(checked), ensure_ascii=False)
    found_prompt, found = marks.find(_render(kind, marked, options)[0].prompt)
    prompt = rendered.prompt
    if found_prompt != prompt:  # a mark changed a decision: fall back to what is sure
        found = []
    paths = _tool_paths(checked, request)
    image = options.special_tokens._image
    sources = _Sources(dialect, prompt, request, found, paths, image)
    segments = tuple(sources.segments(rendered))
    tokens = None if tokenizer is None else tuple(_tokens(rendered, segments, tokenizer))
    return Explanation(prompt, segments, tokens)


def _render(
    kind: Any, body: str, options: ConversionOptions
) -> tuple[RenderedPrompt, ConversationRequest]:
    request = kind(body).convert(options)
    v4 = request.model_version is ModelVersion.DeepseekV4Pro
    encoding = DeepseekV4Encoding() if v4 else DeepseekV41Encoding()
    encoding = encoding.with_special_tokens(options.special_tokens)
    return encoding.render_conversation(request.conversation), request


def _tool_paths(body: dict[str, Any], request: ConversationRequest) -> dict[str, str]:
    """The place of the declaration of every tool, by the name that the model knows."""
    is_v41 = request.model_version is ModelVersion.DeepseekV41Flash
    paths: dict[str, str] = {}
    for index, tool in enumerate(body.get("tools") or ()):
        place = f"tools[{index}]"
        paths[tool.get("function", tool).get("name", tool.get("type"))] = place
        for inner, function in enumerate(tool.get("tools") or ()):
            name = full_name(tool["name"], function["name"], is_v41)
            paths[name] = f"{place}.tools[{inner}]"
    return paths


class _Sources:
    """Gives every character of the prompt its source, the most certain ones last."""

    def __init__(
        self,
        dialect: Dialect,
        prompt: str,
        request: ConversationRequest,
        marks: Sequence[Mark],
        tool_paths: dict[str, str],
        image: str,
    ) -> None:
        self._prompt = prompt
        self._image = image
        self._sources = [TEMPLATE] * len(prompt)
        self._place_settings(dialect, request.conversation)
        self._place_tools(request.conversation, tool_paths)
        self._place_marks(marks)

    def _fill(self, start: int, end: int, source: str) -> None:
        self._sources[start:end] = [source] * (end - start)

    def _place_settings(self, dialect: Dialect, conversation: Conversation) -> None:
        if conversation.thinking_mode:
            for texts in (EFFORT_V41, EFFORT_V4):
                text = texts[conversation.reasoning_effort]
                start = self._prompt.find(text) if text else -1
                if start >= 0:
                    self._fill(start, start + len(text), EFFORT_FIELDS[dialect])
                    break
        start = self._prompt.find("## Response Format:")
        if start >= 0 and conversation.response_format in ("json_object", "json_schema"):
            schema = self._prompt.find("{", start)
            end = self._prompt.find("\n\n", schema) if schema >= 0 else start
            self._fill(schema, max(end, schema), FORMAT_FIELDS[dialect])

    def _place_tools(self, conversation: Conversation, tool_paths: dict[str, str]) -> None:
        for tool in conversation.tools:
            opening = '{"name": ' + json.dumps(tool.name, ensure_ascii=False) + ', "description": '
            start = self._prompt.find(opening)
            while start >= 0:
                end = self._prompt.find("\n", start)
                end = len(self._prompt) if end < 0 else end
                self._fill(start, end, tool_paths.get(tool.name, "tools"))
                start = self._prompt.find(opening, end)

    def _place_marks(self, marks: Sequence[Mark]) -> None:
        for number, mark in enumerate(marks):
            self._fill(mark.start, mark.end, mark.source)
            following = marks[number + 1].start if number + 1 < len(marks) else len(self._prompt)
            close = self._prompt.find("</", mark.end, following)
            gap = self._prompt[mark.end : close + 2] if close >= 0 else ""
            value = _VALUE.match(gap)
            if value is not None:
                # A value that is no string stands between its name and the closing tag.
                self._fill(mark.end + value.start(1), mark.end + value.end(1), mark.source)

    def segments(self, rendered: RenderedPrompt) -> Iterator[Segment]:
        """Segments in order: control tokens alone, text by source."""
        images = iter(rendered.image_sources)
        end = 0
        for start, stop in [*rendered.special_ranges, (len(self._prompt), len(self._prompt))]:
            yield from self._text_segments(end, start)
            if stop > start:
                source = self._sources[start]
                if self._prompt[start:stop] == self._image:
                    source = next(images)._path.removeprefix(".")
                yield Segment(start, stop, "control", source)
            end = stop

    def _text_segments(self, start: int, end: int) -> Iterator[Segment]:
        while start < end:
            source = self._sources[start]
            stop = start + 1
            while stop < end and self._sources[stop] == source:
                stop += 1
            yield Segment(start, stop, "text", source)
            start = stop


def _tokens(
    rendered: RenderedPrompt, segments: Sequence[Segment], tokenizer: Tokenizer
) -> Iterator[ExplainedToken]:
    starts = {segment.start: segment for segment in segments}
    position = 0
    current = segments[0] if segments else None
    for number, part in enumerate(rendered._parts):
        if number % 2:
            segment = starts[position]
            end = position + len(part)
            number_of_token = control_id(part, tokenizer)
            yield ExplainedToken(number_of_token, position, end, "control", segment.source)
            position = end
            continue
        for token, start, end in tokenizer.encode_plain_with_offsets(part):
            place = position + start
            while current is None or not current.start <= place < current.end:
                current = next(s for s in segments if s.start <= place < s.end)
            yield ExplainedToken(token, place, position + end, "text", current.source)
        position += len(part)
