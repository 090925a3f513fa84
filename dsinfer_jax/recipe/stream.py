"""Backend chunks in, chunks or events of a dialect out (recipe.md 5.2, 5.3, 5.8)."""

from __future__ import annotations

import random
import string
from collections import deque
from collections.abc import Callable
from typing import Any

from dsinfer_jax.recipe.actions import TEXT_EFFECTS, Action, Effect
from dsinfer_jax.recipe.event_writer import (
    ChunkGenerator,
    EventWriter,
    FinishReason,
    StreamEnd,
    StreamStart,
)
from dsinfer_jax.recipe.grammar import Grammar, GrammarOptions, build_grammar
from dsinfer_jax.recipe.inference import (
    InferenceChunk,
    InferenceFinishReason,
    ParsingOptions,
    ThinkingInitialStage,
)
from dsinfer_jax.recipe.json_values import quote
from dsinfer_jax.recipe.parser import Parser
from dsinfer_jax.recipe.stream_report import StreamReport
from dsinfer_jax.recipe.token_text import TokenReader
from dsinfer_jax.recipe.tokenizer import Tokenizer
from dsinfer_jax.recipe.tool_arguments import ArgumentWriter, OfficialArguments, StrictArguments
from dsinfer_jax.recipe.values import Value, instance, wrong_type

_FINISH_REASONS: dict[InferenceFinishReason, FinishReason] = {
    InferenceFinishReason.Stop: "stop",
    InferenceFinishReason.Length: "length",
    InferenceFinishReason.ContentFilter: "content_filter",
}


class _Piece:
    """A piece of output whose characters the parser has not all claimed yet."""

    __slots__ = ("claimed", "is_control", "length", "logprobs", "sent", "text")

    def __init__(self, text: str, logprobs: str | None, is_control: bool) -> None:
        self.text = text
        self.length = len(text)
        self.logprobs = logprobs
        self.is_control = is_control
        self.claimed = 0  # characters with a known action
        self.sent = 0  # of these, characters already turned into events


class StreamProcessor(Value):
    """Turns the chunks of one stream into chunks or events of the generator's dialect.

    Args:
        generator: a chunk generator of a dialect; it is used up.
        options: how to read the output, normally `ConversationRequest.parsing_options`.
        tokenizer: decodes `tokens` chunks; without one such a chunk is an error.

    `report` counts what was dropped, repaired or broken (an extension).
    """

    __slots__ = (
        "_action",
        "_announced",
        "_arguments",
        "_calls",
        "_closed",
        "_completion_tokens",
        "_counts_reasoning",
        "_finished",
        "_grammar",
        "_name",
        "_parser",
        "_pieces",
        "_plain",
        "_reader",
        "_reasoned",
        "_reasoning_text",
        "_report",
        "_start",
        "_started",
        "_strict",
        "_texts",
        "_tokenizer",
        "_wake_ids",
        "_wake_text",
        "_writer",
    )

    def __init__(
        self, generator: Any, options: ParsingOptions, tokenizer: Tokenizer | None = None
    ) -> None:
        if not isinstance(generator, ChunkGenerator):
            raise TypeError("expected a protocol chunk generator")
        instance("options", options, ParsingOptions)
        if tokenizer is not None:
            instance("tokenizer", tokenizer, Tokenizer)
        self._writer: EventWriter = generator._take_writer()
        self._tokenizer = tokenizer
        self._reader = None if tokenizer is None else TokenReader(tokenizer)
        self._texts = None if self._reader is None else self._reader.texts
        self._set_up_parser(options)
        self._pieces: deque[_Piece] = deque()
        self._action: Action | None = None
        self._start = StreamStart()
        self._started = self._finished = self._closed = False
        self._completion_tokens = 0
        self._calls = 0
        self._name: list[str] = []
        self._reasoned = False  # reasoning that is not empty was sent
        self._reasoning_text: list[str] = []
        self._announced = False  # a segment of the current action was sent
        self._plain: Callable[[str], list[Any]] | None = None
        self._wake_text = self._wake_ids = self._parser.stage.wake.search

    def _set_up_parser(self, options: ParsingOptions) -> None:
        spellings = options.special_tokens
        stage = options.thinking_initial_stage
        self._strict = options.strict
        self._grammar: Grammar = build_grammar(
            GrammarOptions(
                parse_tool_calls=options.parse_tool_calls,
                parse_json_output=options.parse_json_output,
                stop_sequences=tuple(options.stop_sequences),
                thinking_end=spellings._thinking_end,
                dsml=spellings._dsml,
                strict=options.strict,
            )
        )
        first_stage = {
            None: "content_first",
            ThinkingInitialStage.ReasoningStart: "reasoning_first",
            ThinkingInitialStage.ReasoningContinuation: "reasoning",
            ThinkingInitialStage.ContentContinuation: "content",
        }[stage]
        if options.starts_in_tool_calls:
            first_stage = "calls"
        self._parser = Parser(self._grammar, first_stage)
        self._counts_reasoning = stage is not None
        self._report = StreamReport(spellings._dsml)
        self._arguments: ArgumentWriter
        if options.strict:
            self._arguments = StrictArguments(self._report)
        else:
            self._arguments = OfficialArguments(self._report)

    @property
    def finished(self) -> bool:
        """Whether the stream ended normally and was not closed since."""
        return self._finished and not self._closed

    @property
    def report(self) -> StreamReport:
        """What the stream dropped, repaired or passed on broken, by place."""
        return self._report

    def push(self, chunk: InferenceChunk) -> list[Any]:
        """The events that the chunk completes.

        Raises `RuntimeError` after the end and after `close`, for a `tokens` chunk without a
        tokenizer and for a wrong number of log probabilities; the last two close the stream.
        """
        try:
            kind = chunk._kind
        except AttributeError:
            raise wrong_type("chunk", chunk, "InferenceChunk") from None
        # The fast path (recipe.md 9.5): nothing waits, and nothing in the piece can begin a marker.
        plain = self._plain
        if plain is not None:
            if kind == "text":
                text = chunk._value
                if text and self._wake_text(text) is None:
                    self._completion_tokens += chunk._detail
                    return plain(text)
            elif kind == "tokens" and chunk._detail is None:
                text = self._whole_text(chunk._value)
                if text and self._wake_ids(text) is None:
                    self._completion_tokens += len(chunk._value)
                    return plain(text)
        if self._closed:
            raise RuntimeError("stream processor is closed")
        if self._finished:
            raise RuntimeError("stream processor has finished")
        events = self._push(kind, chunk)
        self._choose_plain()
        return events

    def finish(self) -> list[Any]:
        """End a stream that had no finish chunk; nothing after the end, an error after `close`."""
        if self._closed:
            raise RuntimeError("stream processor is closed")
        if self._finished:
            return []
        events = self._end("stop", after_calls=False)
        self._choose_plain()
        return events

    def close(self) -> None:
        """Give up: no further events, whatever waits is lost."""
        self._closed = True
        self._plain = None
        self._pieces.clear()

    def _push(self, kind: str, chunk: InferenceChunk) -> list[Any]:
        if kind == "text":
            return self._push_piece(chunk._value, chunk._detail, None)
        if kind == "tokens":
            return self._push_tokens(chunk)
        if kind == "finish":
            return self._end(_FINISH_REASONS[chunk._value], after_calls=True)
        return self._push_ready(chunk)

    def _push_ready(self, chunk: InferenceChunk) -> list[Any]:
        if self._started:
            return []
        usage = chunk._value
        self._start = StreamStart(usage.prompt_tokens, usage.prompt_cache_hit_tokens, chunk._detail)
        return self._begin()

    def _begin(self) -> list[Any]:
        if self._started:
            return []
        self._started = True
        return self._writer.start(self._start)

    def _push_tokens(self, chunk: InferenceChunk) -> list[Any]:
        if self._reader is None:
            self.close()
            raise RuntimeError("token chunk received without a tokenizer")
        try:
            pieces = self._reader.push(chunk._value, chunk._detail)
        except RuntimeError:
            self.close()
            raise
        events: list[Any] = []
        for piece in pieces:
            if self._finished:  # a stop sequence ended the stream inside this chunk
                break
            encoded = self._grammar.encode_control(piece.text) if piece.is_control else piece.text
            events += self._push_piece(piece.text, piece.count, encoded, piece.logprobs)
        return events

    def _push_piece(
        self, text: str, count: int, encoded: str | None, logprobs: str | None = None
    ) -> list[Any]:
        """Read one piece; `encoded` is its spelling for the parser when it comes from ids."""
        events = self._begin()
        self._completion_tokens += count
        self._pieces.append(_Piece(text, logprobs, encoded is not None and encoded is not text))
        if text:
            portions = self._parser.feed(text if encoded is None else encoded, encoded is not None)
            for action, length in portions:
                self._claim(action, length, events)
                if self._finished:
                    break
        elif len(self._pieces) == 1 and self._action is not None:
            self._use_up_pieces(events)
        return events

    def _claim(self, action: Action, length: int, events: list[Any]) -> None:
        """Give the next `length` unclaimed characters to an action.

        A segment, the portion of one piece under one action, is sent when the action changes or
        when its piece is used up.
        """
        pieces = self._pieces
        if action is not self._action:
            self._change_action(action, events)
        while length:
            piece = pieces[0]
            taken = min(length, piece.length - piece.claimed)
            piece.claimed += taken
            length -= taken
            if piece.claimed == piece.length:
                self._use_up_pieces(events)

    def _change_action(self, action: Action, events: list[Any]) -> None:
        if self._pieces and self._pieces[0].claimed > self._pieces[0].sent:
            self._send_segment(self._pieces[0], events)
        if self._action is not None:
            self._report.end_stretch(self._action.place)
        self._action = action
        self._announced = False

    def _use_up_pieces(self, events: list[Any]) -> None:
        """Send and remove the first piece and the empty ones that follow it."""
        pieces = self._pieces
        self._send_segment(pieces.popleft(), events)
        while pieces and not pieces[0].length:
            self._send_segment(pieces.popleft(), events)

    def _send_segment(self, piece: _Piece, events: list[Any]) -> None:
        action = self._action
        assert action is not None
        text = piece.text[piece.sent : piece.claimed]
        piece.sent = piece.claimed
        if action.effect in TEXT_EFFECTS:
            if piece.is_control and self._strict:
                self._report.dropped[f"control_token_in_{action.effect.name.lower()}"] += 1
            else:
                events += self._send_text(action, text, piece.logprobs)
        else:
            if not self._announced:
                events += self._send_marker(action, piece.logprobs)
            if action.place is not None:
                self._report.note_ignored(action.place, text)
        self._announced = True

    def _send_text(self, action: Action, text: str, logprobs: str | None) -> list[Any]:
        effect = action.effect
        if effect is Effect.CONTENT:
            return self._writer.content(text, logprobs)
        if effect is Effect.REASONING:
            return self._send_reasoning(text, logprobs)
        if effect is Effect.BLANK:
            self._report.note_ignored(action.place or "", text)
            if self._strict and self._announced:
                return []  # one blank for the whole stretch, however it was cut
            return self._writer.content(" ", logprobs)
        if effect is Effect.NAME_TEXT:
            self._name.append(text)
            return []
        return self._send_argument(effect, text)

    def _send_reasoning(self, text: str, logprobs: str | None = None) -> list[Any]:
        if text:
            self._reasoned = True
            if self._tokenizer is not None:
                self._reasoning_text.append(text)
        return self._writer.reasoning(text, logprobs)

    def _send_argument(self, effect: Effect, text: str) -> list[Any]:
        delta = self._arguments.write(effect, text)
        return [] if delta is None else self._writer.argument(delta)

    def _send_marker(self, action: Action, logprobs: str | None) -> list[Any]:
        effect = action.effect
        if effect is Effect.IGNORE:
            return []
        if effect is Effect.CONTENT_LABEL:
            return self._writer.content(action.text, logprobs)
        if effect is Effect.STOP:
            return self._finish_stream("stop", action.text)
        if effect is Effect.CALL_BEGINS:
            self._name.clear()
            self._arguments.begin()
            return []
        if effect is Effect.NAME_ENDS:
            return self._send_call()
        return self._send_argument(effect, "")

    def _send_call(self) -> list[Any]:
        index = self._calls
        self._calls += 1
        unthinking = self._writer.thinking and not self._reasoned
        return self._writer.call(index, _call_id(index, unthinking), "".join(self._name))

    def _end(self, reason: FinishReason, *, after_calls: bool) -> list[Any]:
        """Flush what waits and finish; `after_calls` turns a stop into `tool_calls`."""
        events = self._begin()
        if reason == "stop" and after_calls and self._calls:
            reason = "tool_calls"
        for action, length in self._parser.finish():
            self._claim(action, length, events)
        if self._action is not None:
            self._report.end_stretch(self._action.place)
        held = self._arguments.end()
        if held is not None:
            events += self._writer.argument(held)
        if self._reader is not None and self._reader.waiting:
            self._report.dropped["incomplete_utf8"] += self._reader.waiting_bytes
        return events + self._finish_stream(reason, None)

    def _finish_stream(self, reason: FinishReason, stop_sequence: str | None) -> list[Any]:
        self._finished = True
        reasoning_tokens = None
        if self._tokenizer is not None and self._counts_reasoning:
            reasoning_tokens = len(self._tokenizer.encode("".join(self._reasoning_text)))
        return self._writer.finish(
            StreamEnd(
                reason=reason,
                stop_sequence=stop_sequence,
                prompt_tokens=self._start.prompt_tokens,
                cache_hit_tokens=self._start.cache_hit_tokens,
                completion_tokens=self._completion_tokens,
                reasoning_tokens=reasoning_tokens,
            )
        )

    def _choose_plain(self) -> None:
        """Choose what the fast path does with a piece that holds no marker, if it may be used.

        It may once nothing waits and the last action is that of ordinary text in this stage.
        """
        stage = self._parser.stage
        self._plain = None
        if (
            self._pieces
            or not self._parser.is_idle
            or self._action is not stage.other
            or self._finished
            or self._closed
            or (self._reader is not None and self._reader.waiting)
        ):
            return
        self._wake_text = self._grammar.by_text[stage.name].wake.search
        self._wake_ids = self._grammar.by_id[stage.name].wake.search
        effect = stage.other.effect
        if effect is Effect.CONTENT:
            self._plain = self._writer.content
        elif effect is Effect.REASONING and self._reasoned:
            self._plain = (
                self._writer.reasoning if self._tokenizer is None else self._send_reasoning
            )
        elif effect is Effect.STRING_TEXT:
            self._plain = self._plain_string
        elif effect is Effect.JSON_TEXT:
            self._plain = self._plain_json

    def _plain_string(self, text: str) -> list[Any]:
        return self._writer.argument(quote(text)[1:-1])

    def _plain_json(self, text: str) -> list[Any]:
        return self._send_argument(Effect.JSON_TEXT, text)

    def _whole_text(self, token_ids: list[int]) -> str | None:
        """The text of ids that each are text on their own, else `None`."""
        texts = self._texts
        if texts is None:
            return None
        if len(token_ids) == 1:
            return texts[token_ids[0]]
        parts = [texts[token_id] for token_id in token_ids]
        return None if None in parts else "".join(parts)  # type: ignore[arg-type]


_CALL_ID_LETTERS = string.ascii_letters + string.digits


def _call_id(index: int, unthinking: bool) -> str:
    """A new call id (recipe.md 5.4); `unthinking`: made without reasoning by a thinking model."""
    letters = "".join(random.choices(_CALL_ID_LETTERS, k=20))
    number = "".join(random.choices(string.digits, k=4))
    return f"call_{index:02d}_{'ET_' if unthinking else ''}{letters}{number}"
