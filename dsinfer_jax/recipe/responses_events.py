"""Responses: stream events, and the response they add up to (recipe.md 5.6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dsinfer_jax.recipe.custom_tool_input import CustomToolInput
from dsinfer_jax.recipe.event_writer import ChunkGenerator, StreamEnd, StreamStart
from dsinfer_jax.recipe.framed_events import Frame, FramedEvent, FramedResponse, consumed
from dsinfer_jax.recipe.json_values import quote
from dsinfer_jax.recipe.responses_items import ItemKind, OutputItem
from dsinfer_jax.recipe.responses_object import (
    ResponsesEcho,
    ResponseState,
    ResponseTemplate,
    usage_json,
)
from dsinfer_jax.recipe.values import instance, maker, string, unsigned, wrong_type

_new = object.__new__
# Looked up once: attribute look-up on an enumeration is slow in Python 3.11.
_REASONING = ItemKind.REASONING
_MESSAGE = ItemKind.MESSAGE
_CUSTOM_TOOL_CALL = ItemKind.CUSTOM_TOOL_CALL
_TOOL_SEARCH_CALL = ItemKind.TOOL_SEARCH_CALL
# What a response object event replaces: the constant parts, the state and the items.
Snapshot = tuple[ResponseTemplate, ResponseState, list[OutputItem]]


class ResponsesStreamEvent(FramedEvent):
    """One event of a stream."""

    __slots__ = ("_number",)
    _number: int  # set in deltas, whose JSON ends with it

    def to_json(self) -> str:
        """The event as compact JSON; `RuntimeError` after accumulation."""
        frame = self._frame
        if frame is None:
            raise consumed()
        text = self._text
        if text is None:
            return frame.prefix
        return f"{frame.prefix}{quote(text)}{frame.suffix}{self._number}}}"


_make_event = maker(ResponsesStreamEvent)


@dataclass(frozen=True, slots=True)
class ResponsesSettings:
    """The settings of one stream.

    `custom_tools` are the names declared as custom tools, `client_tool_search` says whether
    `tool_search` was declared for the client, `namespaces` gives the namespace and the local name
    of each declared namespace function.
    """

    id: str
    model: str
    thinking: bool
    created: int
    echo: ResponsesEcho
    custom_tools: frozenset[str] = frozenset()
    client_tool_search: bool = False
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)


class ResponsesChunkGenerator(ChunkGenerator[ResponsesSettings]):
    """Makes the events of one stream; used up by `StreamProcessor` and by its own methods."""

    __slots__ = ()

    @staticmethod
    def _of(settings: ResponsesSettings) -> ResponsesChunkGenerator:
        generator: ResponsesChunkGenerator = _new(ResponsesChunkGenerator)
        generator._settings = settings
        return generator

    def with_namespace_tool_map(
        self, namespace_tool_map: dict[str, tuple[str, str]]
    ) -> ResponsesChunkGenerator:
        """Use up this generator; the new one splits the names of namespace functions."""
        namespaces = {}
        for name, pair in instance("namespace_tool_map", namespace_tool_map, dict).items():
            string("namespace_tool_map", name)
            if not isinstance(pair, tuple):
                raise wrong_type("namespace_tool_map", pair, "tuple")
            namespace, local = pair
            namespaces[name] = (
                string("namespace_tool_map", namespace),
                string("namespace_tool_map", local),
            )
        return self._of(replace(self._take_settings(), namespaces=namespaces))

    def with_echo(self, echo: ResponsesEcho) -> ResponsesChunkGenerator:
        """Use up this generator; the responses of the new one report these settings."""
        instance("echo", echo, ResponsesEcho)
        return self._of(replace(self._take_settings(), echo=echo))

    def _take_writer(self) -> _ResponsesWriter:
        return _ResponsesWriter(self._take_settings())


class _ResponsesWriter:
    """Writes the events of one stream: at most one item is open at a time."""

    __slots__ = (
        "_custom_input",
        "_delta",
        "_item",
        "_items",
        "_number",
        "_parts",
        "_settings",
        "_template",
        "thinking",
    )

    def __init__(self, settings: ResponsesSettings) -> None:
        self._settings = settings
        self.thinking = settings.thinking
        self._template = ResponseTemplate(
            settings.id, settings.model, settings.created, settings.echo
        )
        self._number = 0
        self._items: list[OutputItem] = []  # closed ones
        self._item: OutputItem | None = None
        self._delta: Frame[ResponsesResponse] | None = None  # of the open item
        self._parts: list[str] = []  # of the open item
        self._custom_input = CustomToolInput()

    def start(self, start: StreamStart) -> list[ResponsesStreamEvent]:
        return [
            self._response("response.created", ResponseState()),
            self._response("response.in_progress", ResponseState()),
        ]

    def reasoning(self, text: str, logprobs: str | None = None) -> list[ResponsesStreamEvent]:
        return [*self._open_text(_REASONING), self._text_delta(text)]

    def content(self, text: str, logprobs: str | None = None) -> list[ResponsesStreamEvent]:
        return [*self._open_text(_MESSAGE), self._text_delta(text, logprobs)]

    def more(self, text: str) -> list[ResponsesStreamEvent]:
        self._parts.append(text)
        event = _make_event()
        event._frame = self._delta
        event._text = text
        event._number = self._number
        self._number += 1
        return [event]

    def call(self, index: int, call_id: str, name: str) -> list[ResponsesStreamEvent]:
        settings = self._settings
        kind = ItemKind.FUNCTION_CALL
        if name in settings.custom_tools:
            kind = _CUSTOM_TOOL_CALL
            self._custom_input = CustomToolInput()
        elif name == "tool_search" and settings.client_tool_search:
            kind = _TOOL_SEARCH_CALL
        events = self._close(phase="commentary")
        item = self._new_item(kind)
        item.call_id = call_id
        item.name = name
        if kind is ItemKind.FUNCTION_CALL and name in settings.namespaces:
            item.namespace, item.name = settings.namespaces[name]
        events.append(self._item_event("response.output_item.added", item))
        event_name = (
            "response.custom_tool_call_input.delta"
            if kind is _CUSTOM_TOOL_CALL
            else "response.function_call_arguments.delta"
        )
        self._delta = self._delta_frame(event_name, item, has_part=False)
        return events

    def argument(self, text: str) -> list[ResponsesStreamEvent]:
        item = self._item
        assert item is not None
        if item.kind is _CUSTOM_TOOL_CALL:
            decoded = self._custom_input.feed(text)
            if decoded is None:
                return []
            text = decoded
        if item.kind is _TOOL_SEARCH_CALL:
            item.parts.append(text)
            return []
        return self.more(text)

    def finish(self, end: StreamEnd) -> list[ResponsesStreamEvent]:
        details = {
            "length": '{"reason":"max_output_tokens"}',
            "content_filter": '{"reason":"content_filter"}',
        }.get(end.reason)
        events = self._close(incomplete=details is not None)
        status = "completed" if details is None else "incomplete"
        state = ResponseState(status, str(int(time.time())), details or "null", usage_json(end))
        events.append(self._response(f"response.{status}", state))
        return events

    def ping(self) -> list[ResponsesStreamEvent]:
        return []

    def _new_item(self, kind: ItemKind) -> OutputItem:
        self._item = item = OutputItem(kind, self._settings.id, len(self._items))
        self._parts = item.parts
        return item

    def _open_text(self, kind: ItemKind) -> list[ResponsesStreamEvent]:
        """Have reasoning or a message open, with its only part; the item before it is closed."""
        if self._item is not None and self._item.kind is kind:
            return []
        events = self._close()
        item = self._new_item(kind)
        events.append(self._item_event("response.output_item.added", item))
        events.append(self._part_event("response.content_part.added", item))
        item.has_part = True
        name = (
            "response.reasoning_text.delta" if kind is _REASONING else "response.output_text.delta"
        )
        self._delta = self._delta_frame(name, item, has_part=True)
        return events

    def _close(
        self, *, phase: str = "final_answer", incomplete: bool = False
    ) -> list[ResponsesStreamEvent]:
        item = self._item
        if item is None:
            return []
        self._item = None
        self._items.append(item)
        events: list[ResponsesStreamEvent] = []
        if item.kind is _CUSTOM_TOOL_CALL:
            held = self._custom_input.end()
            if held is not None:
                item.parts.append(held)
                events.append(self._delta_event(held))
        item.phase = phase
        item.close(incomplete=incomplete)
        events += self._text_done(item)
        if item.has_part:
            events.append(self._part_event("response.content_part.done", item))
        events.append(self._item_event("response.output_item.done", item))
        return events

    def _text_done(self, item: OutputItem) -> list[ResponsesStreamEvent]:
        """The event that repeats the whole text of the item."""
        place = f'"item_id":{quote(item.id)},'
        text = quote(item.text)
        if item.kind is _REASONING:
            name, before = "response.reasoning_text.done", f'"content_index":0,{place}'
        elif item.kind is _MESSAGE:
            name = "response.output_text.done"
            before = f'"content_index":0,{place}"logprobs":[{",".join(item.logprobs)}],'
        elif item.kind is ItemKind.FUNCTION_CALL:
            name, before = "response.function_call_arguments.done", f'"arguments":{text},{place}'
        elif item.kind is _CUSTOM_TOOL_CALL:
            name, before = "response.custom_tool_call_input.done", f'"input":{text},{place}'
        else:
            return []
        after = f',"text":{text}' if item.has_part else ""
        index, whole = item.index, item.text

        def apply(response: ResponsesResponse, text: str) -> None:
            response._set_text(index, whole)

        return [self._event(name, f'{before}"output_index":{index}', after, apply)]

    def _text_delta(self, text: str, logprobs: str | None = None) -> ResponsesStreamEvent:
        item = self._item
        assert item is not None
        item.parts.append(text)
        if logprobs is None or item.kind is _REASONING:
            return self._delta_event(text)
        item.logprobs.append(logprobs)
        frame = self._delta_frame("response.output_text.delta", item, True, logprobs)
        return self._delta_event(text, frame)

    def _delta_event(
        self, text: str, frame: Frame[ResponsesResponse] | None = None
    ) -> ResponsesStreamEvent:
        event = _make_event()
        event._frame = frame or self._delta
        event._text = text
        event._number = self._number
        self._number += 1
        return event

    def _delta_frame(
        self, name: str, item: OutputItem, has_part: bool, logprobs: str | None = None
    ) -> Frame[ResponsesResponse]:
        part = '"content_index":0,' if has_part else ""
        entries = f'"logprobs":[{logprobs or ""}],' if item.kind is _MESSAGE else ""
        index = item.index

        def apply(response: ResponsesResponse, text: str) -> None:
            response._grow(index, text, logprobs)

        return Frame(
            name,
            f'{{"type":"{name}",{part}"delta":',
            f',"item_id":{quote(item.id)},{entries}"output_index":{index},"sequence_number":',
            apply,
        )

    def _event(
        self,
        name: str,
        before: str,
        after: str = "",
        apply: Callable[[ResponsesResponse, str], None] | None = None,
    ) -> ResponsesStreamEvent:
        """A complete event: the members before and after its sequence number."""
        text = f'{{"type":"{name}",{before},"sequence_number":{self._number}{after}}}'
        self._number += 1
        event = _make_event()
        event._frame = Frame(name, text, "", apply)
        event._text = None
        return event

    def _response(self, name: str, state: ResponseState) -> ResponsesStreamEvent:
        items = list(self._items)  # closed items do not change any more
        template = self._template

        def apply(response: ResponsesResponse, text: str) -> None:
            response._template, response._state, response._items = template, state, items

        output = ",".join(item.to_json() for item in items)
        return self._event(name, f'"response":{template.write(state, output)}', apply=apply)

    def _item_event(self, name: str, item: OutputItem) -> ResponsesStreamEvent:
        snapshot = item.copy()
        is_new = item.status == "in_progress"

        def apply(response: ResponsesResponse, text: str) -> None:
            response._set_item(snapshot, is_new=is_new)

        return self._event(
            name, f'"item":{item.to_json()},"output_index":{item.index}', apply=apply
        )

    def _part_event(self, name: str, item: OutputItem) -> ResponsesStreamEvent:
        snapshot = item.copy()
        is_new = item.status == "in_progress"

        def apply(response: ResponsesResponse, text: str) -> None:
            response._set_part(snapshot, is_new=is_new)

        return self._event(
            name,
            f'"content_index":0,"item_id":{quote(item.id)},"output_index":{item.index},'
            f'"part":{item.part_json()}',
            apply=apply,
        )


class ResponsesResponse(FramedResponse[ResponsesStreamEvent]):
    """The body of a request that is not streamed, built from the events of its stream.

    `prompt_tokens` and `prompt_cache_hit_tokens` are accepted for symmetry: the events carry the
    usage that is reported. Events of an item or a part whose opening is missing change nothing.
    """

    _event_type = ResponsesStreamEvent
    __slots__ = ("_items", "_state", "_template")

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        self._template = ResponseTemplate(
            string("id", id),
            string("model", model),
            unsigned("created", created, 64),
            ResponsesEcho(),
        )
        unsigned("prompt_tokens", prompt_tokens, 64)
        unsigned("prompt_cache_hit_tokens", prompt_cache_hit_tokens, 64)
        self._state = ResponseState()
        self._items: list[OutputItem] = []

    def _set_item(self, item: OutputItem, *, is_new: bool) -> None:
        if item.index < len(self._items) + is_new:
            self._items[item.index : item.index + 1] = [item]

    def _set_part(self, item: OutputItem, *, is_new: bool) -> None:
        if item.index >= len(self._items):
            return
        grown = self._items[item.index]
        if is_new or grown.has_part:
            grown.has_part = True
            grown.parts, grown.logprobs = list(item.parts), list(item.logprobs)

    def _receiver(self, index: int) -> OutputItem | None:
        """The item at `index` if it can take text: a call, or one with a part."""
        if index >= len(self._items):
            return None
        item = self._items[index]
        needs_part = item.kind in (ItemKind.REASONING, ItemKind.MESSAGE)
        return item if item.has_part or not needs_part else None

    def _grow(self, index: int, text: str, logprobs: str | None) -> None:
        item = self._receiver(index)
        if item is not None:
            item.parts.append(text)
            if logprobs:
                item.logprobs.append(logprobs)

    def _set_text(self, index: int, text: str) -> None:
        item = self._receiver(index)
        if item is not None:
            item.parts = [text]

    def to_json(self) -> str:
        """The response so far as compact JSON."""
        return self._template.write(self._state, ",".join(item.to_json() for item in self._items))
