"""Messages: stream events, and the message they add up to (recipe.md 5.7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from dsinfer_jax.recipe.event_writer import ChunkGenerator, FinishReason, StreamEnd, StreamStart
from dsinfer_jax.recipe.framed_events import Frame, FramedEvent, FramedResponse, consumed
from dsinfer_jax.recipe.json_text import JsonSyntaxError, read_json
from dsinfer_jax.recipe.json_values import quote, write_compact
from dsinfer_jax.recipe.values import boolean, maker, string, unsigned

BlockKind = Literal["thinking", "text", "tool_use"]
_new = object.__new__
_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
# Type of the delta and name of its member, by kind of block.
_DELTAS: dict[BlockKind, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class MessagesStreamEvent(FramedEvent):
    """One event of a stream."""

    __slots__ = ()

    def to_json(self) -> str:
        """The event as compact JSON; `RuntimeError` after accumulation."""
        frame = self._frame
        if frame is None:
            raise consumed()
        text = self._text
        if text is None:
            return frame.prefix
        return f"{frame.prefix}{quote(text)}{frame.suffix}"


_make_event = maker(MessagesStreamEvent)


@dataclass(frozen=True, slots=True)
class MessagesSettings:
    """The settings of one stream; `signature` closes thinking blocks."""

    id: str
    model: str
    thinking: bool
    signature: str


class MessagesChunkGenerator(ChunkGenerator[MessagesSettings]):
    """Makes the events of one stream; used up by `StreamProcessor` and `with_signature`."""

    __slots__ = ()

    def __new__(cls, id: str, model: str, thinking_mode: bool) -> MessagesChunkGenerator:
        settings = MessagesSettings(
            string("id", id), string("model", model), boolean("thinking_mode", thinking_mode), id
        )
        return cls._of(settings)

    @classmethod
    def _of(cls, settings: MessagesSettings) -> MessagesChunkGenerator:
        generator: MessagesChunkGenerator = _new(cls)
        generator._settings = settings
        return generator

    def with_signature(self, signature: str) -> MessagesChunkGenerator:
        """Use up this generator; the new one ends thinking blocks with `signature`.

        The default is the id of the response.
        """
        signature = string("signature", signature)
        return self._of(replace(self._take_settings(), signature=signature))

    def _take_writer(self) -> _MessagesWriter:
        return _MessagesWriter(self._take_settings())


class _Block:
    """One content block that grows."""

    __slots__ = ("call_id", "input", "kind", "name", "parts", "signature")

    def __init__(self, kind: BlockKind, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.call_id = call_id
        self.name = name
        self.signature = ""
        self.input = "{}"
        self.parts: list[str] = []

    def stop(self) -> None:
        """The block is complete: the input of a tool is what its pieces parse to."""
        if self.kind == "tool_use":
            try:
                self.input = write_compact(read_json("".join(self.parts)))
            except JsonSyntaxError:
                self.input = "{}"

    def to_json(self) -> str:
        if self.kind == "text":
            return f'{{"type":"text","text":{quote("".join(self.parts))}}}'
        if self.kind == "thinking":
            return (
                f'{{"type":"thinking","thinking":{quote("".join(self.parts))},'
                f'"signature":{quote(self.signature)}}}'
            )
        return (
            f'{{"type":"tool_use","id":{quote(self.call_id)},"name":{quote(self.name)},'
            f'"input":{self.input}}}'
        )


class _MessagesWriter:
    """Writes the events of one stream: at most one block is open at a time."""

    __slots__ = ("_delta", "_kind", "_next_index", "_pinged", "_settings", "thinking")

    def __init__(self, settings: MessagesSettings) -> None:
        self._settings = settings
        self.thinking = settings.thinking
        self._kind: BlockKind | None = None  # of the open block
        self._delta: Frame[MessagesResponse] | None = None  # of the open block
        self._next_index = 0
        self._pinged = False

    def start(self, start: StreamStart) -> list[MessagesStreamEvent]:
        settings = self._settings
        usage = _usage(start.prompt_tokens, start.cache_hit_tokens, 0)
        message = _message_json(settings.id, settings.model, "", "null", "null", usage)

        def apply(response: MessagesResponse, text: str) -> None:
            response._id, response._model, response._usage = settings.id, settings.model, usage

        events = [_event("message_start", f',"message":{message}', apply)]
        if settings.thinking:
            events += self._open(_Block("thinking"))
        return events

    def reasoning(self, text: str, logprobs: str | None = None) -> list[MessagesStreamEvent]:
        if self._kind == "thinking":
            return self.more(text)
        return [*self._close(), *self._open(_Block("thinking")), *self.more(text)]

    def content(self, text: str, logprobs: str | None = None) -> list[MessagesStreamEvent]:
        if self._kind == "text":
            return self.more(text)
        return [*self._close(), *self._open(_Block("text")), *self.more(text)]

    def more(self, text: str) -> list[MessagesStreamEvent]:
        event = _make_event()
        event._frame = self._delta
        event._text = text
        return [event]

    def call(self, index: int, call_id: str, name: str) -> list[MessagesStreamEvent]:
        return [*self._close(), *self._open(_Block("tool_use", call_id, name))]

    def argument(self, text: str) -> list[MessagesStreamEvent]:
        event = _make_event()
        event._frame = self._delta
        event._text = text
        return [event]

    def finish(self, end: StreamEnd) -> list[MessagesStreamEvent]:
        events = self._close()
        if end.stop_sequence is None:
            reason, sequence = quote(_STOP_REASONS[end.reason]), "null"
        else:
            reason, sequence = '"stop_sequence"', quote(end.stop_sequence)
        usage = _usage(end.prompt_tokens, end.cache_hit_tokens, end.completion_tokens)

        def apply(response: MessagesResponse, text: str) -> None:
            response._stop_reason, response._stop_sequence = reason, sequence
            response._usage = usage

        delta = f'{{"stop_reason":{reason},"stop_sequence":{sequence}}}'
        events.append(_event("message_delta", f',"delta":{delta},"usage":{usage}', apply))
        events.append(_event("message_stop", ""))
        return events

    def ping(self) -> list[MessagesStreamEvent]:
        return [_event("ping", "")]

    def _open(self, block: _Block) -> list[MessagesStreamEvent]:
        index = self._next_index
        self._next_index += 1
        self._kind = block.kind
        delta_type, member = _DELTAS[block.kind]
        self._delta = Frame(
            "content_block_delta",
            f'{{"type":"content_block_delta","index":{index},'
            f'"delta":{{"type":"{delta_type}","{member}":',
            "}}",
            lambda response, text: response._grow(index, text),
        )

        def apply(response: MessagesResponse, text: str) -> None:
            response._open(index, _Block(block.kind, block.call_id, block.name))

        started = f',"index":{index},"content_block":{block.to_json()}'
        events = [_event("content_block_start", started, apply)]
        if not self._pinged:
            self._pinged = True
            events.append(_event("ping", ""))
        return events

    def _close(self) -> list[MessagesStreamEvent]:
        if self._kind is None:
            return []
        index = self._next_index - 1
        events = []
        if self._kind == "thinking":
            signature = self._settings.signature

            def sign(response: MessagesResponse, text: str) -> None:
                if index < len(response._blocks):
                    response._blocks[index].signature = signature

            delta = f'{{"type":"signature_delta","signature":{quote(signature)}}}'
            events.append(_event("content_block_delta", f',"index":{index},"delta":{delta}', sign))
        self._kind = None

        def stop(response: MessagesResponse, text: str) -> None:
            if index < len(response._blocks):
                response._blocks[index].stop()

        events.append(_event("content_block_stop", f',"index":{index}', stop))
        return events


def _event(
    name: str, members: str, apply: Callable[[MessagesResponse, str], None] | None = None
) -> MessagesStreamEvent:
    """A complete event; `members` follow the type, each with a comma in front."""
    event = _make_event()
    event._frame = Frame(name, f'{{"type":"{name}"{members}}}', "", apply)
    event._text = None
    return event


def _usage(prompt: int, hit: int, completion: int) -> str:
    """The usage object (recipe.md 5.7)."""
    return (
        f'{{"input_tokens":{max(0, prompt - hit)},"cache_creation_input_tokens":0,'
        f'"cache_read_input_tokens":{hit},"output_tokens":{completion},"service_tier":"standard"}}'
    )


def _message_json(
    id: str, model: str, content: str, stop_reason: str, stop_sequence: str, usage: str
) -> str:
    """The message object; all but `id` and `model` are JSON already."""
    return (
        f'{{"id":{quote(id)},"type":"message","role":"assistant","model":{quote(model)},'
        f'"content":[{content}],"stop_reason":{stop_reason},"stop_sequence":{stop_sequence},'
        f'"usage":{usage}}}'
    )


class MessagesResponse(FramedResponse[MessagesStreamEvent]):
    """The body of a request that is not streamed, built from the events of its stream.

    Events of a block whose start is missing change nothing.
    """

    _event_type = MessagesStreamEvent
    __slots__ = ("_blocks", "_id", "_model", "_stop_reason", "_stop_sequence", "_usage")

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        self._id = string("id", id)
        self._model = string("model", model)
        unsigned("created", created, 64)
        self._usage = _usage(
            unsigned("prompt_tokens", prompt_tokens, 64),
            unsigned("prompt_cache_hit_tokens", prompt_cache_hit_tokens, 64),
            0,
        )
        self._blocks: list[_Block] = []
        self._stop_reason = "null"
        self._stop_sequence = "null"

    def _open(self, index: int, block: _Block) -> None:
        if index <= len(self._blocks):
            self._blocks[index : index + 1] = [block]

    def _grow(self, index: int, text: str) -> None:
        if index < len(self._blocks):
            self._blocks[index].parts.append(text)

    def to_json(self) -> str:
        """The message so far as compact JSON."""
        content = ",".join(block.to_json() for block in self._blocks)
        return _message_json(
            self._id, self._model, content, self._stop_reason, self._stop_sequence, self._usage
        )
