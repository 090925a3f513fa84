"""Backend chunks in, chunks or events of a dialect out (recipe.md 5.2, 5.3, 5.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsinfer_jax.recipe.actions import Action, Effect
from dsinfer_jax.recipe.event_writer import (
    ChunkGenerator,
    EventWriter,
    FinishReason,
    StreamEnd,
    StreamStart,
)
from dsinfer_jax.recipe.grammar import Grammar, GrammarOptions, Stage, build_grammar
from dsinfer_jax.recipe.inference import (
    InferenceChunk,
    InferenceFinishReason,
    ParsingOptions,
    ThinkingInitialStage,
)
from dsinfer_jax.recipe.parser import Parser
from dsinfer_jax.recipe.segments import SegmentSender
from dsinfer_jax.recipe.stream_report import StreamReport
from dsinfer_jax.recipe.token_text import TokenPiece, TokenReader
from dsinfer_jax.recipe.tokenizer import Tokenizer
from dsinfer_jax.recipe.values import Value, instance, wrong_type

_FINISH_REASONS: dict[InferenceFinishReason, FinishReason] = {
    InferenceFinishReason.Stop: "stop",
    InferenceFinishReason.Length: "length",
    InferenceFinishReason.ContentFilter: "content_filter",
}
_FIRST_STAGES = {
    None: "content_first",
    ThinkingInitialStage.ReasoningStart: "reasoning_first",
    ThinkingInitialStage.ReasoningContinuation: "reasoning",
    ThinkingInitialStage.ContentContinuation: "content",
}

_FINISHED = "stream processor has finished"
_CLOSED = "stream processor is closed"
_PARTIAL_MARKER = Action(Effect.IGNORE, place="partial_marker")


class StreamProcessor(Value):
    """Turns the chunks of one stream into chunks or events of the generator's dialect.

    Args:
        generator: a chunk generator of a dialect; it is used up.
        options: how to read the output, normally `ConversationRequest.parsing_options`.
        tokenizer: decodes `tokens` chunks; without one such a chunk is an error.

    `report` counts what was dropped, repaired or broken (an extension).
    """

    __slots__ = (
        "_completion_tokens",
        "_counts_reasoning",
        "_dsml",
        "_ended",
        "_grammar",
        "_letter",
        "_parser",
        "_plain",
        "_reader",
        "_report",
        "_sender",
        "_start",
        "_started",
        "_strict",
        "_tail",
        "_tokenizer",
        "_wake_ids",
        "_wake_stage",
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
        self._grammar = _grammar(options)
        first_stage = _FIRST_STAGES[options.thinking_initial_stage]
        self._parser = Parser(
            self._grammar, "calls" if options.starts_in_tool_calls else first_stage
        )
        self._counts_reasoning = (
            tokenizer is not None and options.thinking_initial_stage is not None
        )
        self._strict = options.strict
        self._dsml = options.special_tokens._dsml
        self._report = StreamReport(self._dsml)
        self._sender = SegmentSender(
            self._writer,
            self._report,
            strict=options.strict,
            keep_reasoning=self._counts_reasoning,
        )
        self._start = StreamStart()
        self._started = False
        self._ended: str | None = None  # why nothing can be pushed any more
        self._completion_tokens = 0
        self._plain: Callable[[str], list[Any]] | None = None
        self._wake_stage: Stage | None = None
        self._letter: str | None = None
        self._tail = ""
        self._wake_text = self._wake_ids = self._parser.stage.wake.search

    @property
    def finished(self) -> bool:
        """Whether the stream ended normally and was not closed since."""
        return self._ended is _FINISHED

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
                letter = self._letter
                if text and (
                    letter not in text and text[-1] != self._tail
                    if letter is not None
                    else self._wake_text(text) is None
                ):
                    self._completion_tokens += chunk._detail
                    return plain(text)
            elif kind == "tokens" and chunk._detail is None and self._reader is not None:
                text = self._reader.whole_text(chunk._value)
                if text and self._wake_ids(text) is None:
                    self._completion_tokens += len(chunk._value)
                    return plain(text)
        if self._ended is not None:
            raise RuntimeError(self._ended)
        if kind == "text":
            events = [] if self._started else self._begin()
            self._completion_tokens += chunk._detail
            text = chunk._value
            self._sender.push(text, self._parser.feed(text), None, False, events)
            if self._sender.stop_sequence is not None:
                return self._stop(events)
        elif kind == "tokens":
            events = self._push_tokens(chunk)
        elif kind == "finish":
            return self._end(_FINISH_REASONS[chunk._value], after_calls=True)
        else:
            return self._push_ready(chunk)
        if self._parser.is_idle:
            self._choose_plain()
        else:
            self._plain = None
        return events

    def finish(self) -> list[Any]:
        """End a stream that had no finish chunk; nothing after the end, an error after `close`."""
        if self._ended is _CLOSED:
            raise RuntimeError(_CLOSED)
        return [] if self._ended else self._end("stop", after_calls=False)

    def ping(self) -> list[Any]:
        """An event for a connection that has been quiet for a while (an extension).

        Messages has one; in the other dialects, and outside a running stream, there is none.
        """
        return self._writer.ping() if self._started and self._ended is None else []

    def close(self) -> None:
        """Give up: no further events, whatever waits is lost."""
        self._ended = _CLOSED
        self._plain = None
        self._sender.discard()

    def _push_ready(self, chunk: InferenceChunk) -> list[Any]:
        if self._started:  # only the first counts
            return []
        usage = chunk._value
        self._start = StreamStart(usage.prompt_tokens, usage.prompt_cache_hit_tokens, chunk._detail)
        return self._begin()

    def _begin(self) -> list[Any]:
        self._started = True
        return self._writer.start(self._start)

    def _push_tokens(self, chunk: InferenceChunk) -> list[Any]:
        if self._reader is None:
            self.close()
            raise RuntimeError("token chunk received without a tokenizer")
        ids, logprobs = chunk._value, chunk._detail
        whole = self._reader.whole_text(ids) if logprobs is None else None
        if whole:
            pieces = [TokenPiece(whole, False, len(ids), None)]
        else:
            try:
                pieces = self._reader.push(ids, logprobs)
            except RuntimeError:
                self.close()
                raise
        events: list[Any] = []
        for piece in pieces:
            if not self._started:
                events += self._begin()
            self._completion_tokens += piece.count
            text = piece.text
            encoded = self._grammar.encode_control(text) if piece.is_control else text
            portions = self._parser.feed(encoded, by_id=True)
            self._sender.push(text, portions, piece.logprobs, piece.is_control, events)
            if self._sender.stop_sequence is not None:
                return self._stop(events)
        return events

    def _stop(self, events: list[Any]) -> list[Any]:
        """A stop sequence was met: finish, whatever else the chunk held."""
        self._report.dropped["after_stop_sequence"] += self._sender.discard()
        self._sender.end()
        return events + self._finish_stream("stop")

    def _end(self, reason: FinishReason, *, after_calls: bool) -> list[Any]:
        """Flush what waits and finish; `after_calls` turns a stop into `tool_calls`."""
        events = [] if self._started else self._begin()
        if reason == "stop" and after_calls and self._sender.calls:
            reason = "tool_calls"
        portions = self._parser.finish()
        if self._strict and self._dsml and self._dsml[0] in self._sender.unclaimed_text:
            # The beginning of a tag, cut off by the end of the output: no text of the answer.
            portions = [(_PARTIAL_MARKER, length) for _, length in portions]
        self._sender.claim(portions, events)
        events += self._sender.end()
        if self._reader is not None and self._reader.waiting:
            self._report.dropped["incomplete_utf8"] += self._reader.waiting_bytes
        return events + self._finish_stream(reason)

    def _finish_stream(self, reason: FinishReason) -> list[Any]:
        if not self._sender.answered and not self._sender.calls:
            self._report.broken["empty_answer"] += 1
        self._ended = _FINISHED
        self._plain = None
        reasoning_tokens = None
        if self._tokenizer is not None and self._counts_reasoning:
            reasoning = "".join(self._sender.reasoning_text)
            reasoning_tokens = len(self._tokenizer.encode(reasoning))
        return self._writer.finish(
            StreamEnd(
                reason=reason,
                stop_sequence=self._sender.stop_sequence,
                prompt_tokens=self._start.prompt_tokens,
                cache_hit_tokens=self._start.cache_hit_tokens,
                completion_tokens=self._completion_tokens,
                reasoning_tokens=reasoning_tokens,
            )
        )

    def _choose_plain(self) -> None:
        """Choose what the fast path does with a piece that holds no marker, if it may be used."""
        if self._ended or (self._reader and self._reader.waiting):
            self._plain = None
            return
        stage = self._parser.stage
        self._plain = self._sender.plain(stage.other)
        if self._plain is not None and stage is not self._wake_stage:
            self._wake_stage = stage
            by_text = self._grammar.by_text[stage.name]
            self._letter, self._tail = by_text.letter, by_text.tail
            self._wake_text = by_text.wake.search
            self._wake_ids = self._grammar.by_id[stage.name].wake.search


def _grammar(options: ParsingOptions) -> Grammar:
    spellings = options.special_tokens
    return build_grammar(
        GrammarOptions(
            parse_tool_calls=options.parse_tool_calls,
            parse_json_output=options.parse_json_output,
            stop_sequences=tuple(options.stop_sequences),
            thinking_end=spellings._thinking_end,
            dsml=spellings._dsml,
            strict=options.strict,
        )
    )
