"""Chat Completions: chunks, and the response they add up to (recipe.md 5.5)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dsinfer_jax.recipe.event_writer import ChunkGenerator, StreamEnd, StreamStart
from dsinfer_jax.recipe.framed_events import consumed
from dsinfer_jax.recipe.json_values import quote
from dsinfer_jax.recipe.values import OutputOnly, Value, instance, maker, string, unsigned

ChunkKind = Literal["start", "content", "reasoning", "call", "argument", "finish"]
_new = object.__new__


class _Frame:
    """The JSON before and after the text of a chunk; shared by the chunks of one kind.

    `value` is what accumulation needs beside the text: the first texts of a start, the id and index
    of a call, the index of an argument's call, the entries of log probabilities, the end of a
    stream.
    """

    __slots__ = ("choice", "fingerprint", "kind", "prefix", "suffix", "value")

    def __init__(
        self,
        kind: ChunkKind,
        prefix: str,
        suffix: str,
        choice: int,
        fingerprint: str | None,
        value: Any = None,
    ) -> None:
        self.kind = kind
        self.prefix = prefix
        self.suffix = suffix
        self.choice = choice
        self.fingerprint = fingerprint
        self.value = value


class ChatCompletionChunk(OutputOnly):
    """One chunk of a stream."""

    __slots__ = ("_frame", "_text")
    _frame: _Frame | None  # None once accumulated
    _text: str

    def to_json(self) -> str:
        """The chunk as compact JSON; `RuntimeError` after accumulation."""
        frame = self._frame
        if frame is None:
            raise consumed()
        return f"{frame.prefix}{quote(self._text)}{frame.suffix}"


_make_chunk = maker(ChatCompletionChunk)


class ChoiceTotals:
    """Usage of several choices of one response: the last choice to finish reports the sum."""

    __slots__ = ("_completion_tokens", "_reasoning_tokens", "_unfinished")

    def __init__(self, choices: int) -> None:
        self._unfinished = choices
        self._completion_tokens = 0
        self._reasoning_tokens: int | None = None

    def add(self, end: StreamEnd) -> StreamEnd | None:
        """Count the end of one choice; the totals if it is the last one, else `None`."""
        self._unfinished -= 1
        self._completion_tokens += end.completion_tokens
        if end.reasoning_tokens is not None:
            self._reasoning_tokens = (self._reasoning_tokens or 0) + end.reasoning_tokens
        if self._unfinished:
            return None
        return replace(
            end,
            completion_tokens=self._completion_tokens,
            reasoning_tokens=self._reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings of one choice of a stream.

    `in_reasoning`: the request makes the answer begin with reasoning, so the first chunk has an
    empty reasoning instead of an empty content. `null_usage`: chunks before the last carry
    `"usage":null` (not streamed, or `include_usage`). `totals` is shared by the choices of one
    response.
    """

    id: str
    model: str
    thinking: bool
    in_reasoning: bool
    created: int
    null_usage: bool
    choice: int = 0
    totals: ChoiceTotals = field(default_factory=lambda: ChoiceTotals(1))


class ChatCompletionChunkGenerator(ChunkGenerator[ChatSettings]):
    """Makes the chunks of one choice; used up by `StreamProcessor` or `with_choices`."""

    __slots__ = ()

    @staticmethod
    def _of(settings: ChatSettings) -> ChatCompletionChunkGenerator:
        generator: ChatCompletionChunkGenerator = _new(ChatCompletionChunkGenerator)
        generator._settings = settings
        return generator

    def with_choices(self, n: int) -> list[ChatCompletionChunkGenerator]:
        """Use up this generator; one generator for each of `n` choices of one response.

        An extension: the official package serves `n = 1` only. Each choice gets a stream processor
        of its own; the finish chunk of the choice that finishes last carries the usage of all.
        """
        if unsigned("n", n, 8) == 0:
            raise ValueError("n is 0; a response needs at least one choice")
        settings = self._take_settings()
        totals = ChoiceTotals(n)
        return [self._of(replace(settings, choice=choice, totals=totals)) for choice in range(n)]

    def _take_writer(self) -> _ChatWriter:
        return _ChatWriter(self._take_settings())


class _ChatWriter:
    """Writes the chunks of one choice."""

    __slots__ = (
        "_argument",
        "_content",
        "_fingerprint",
        "_head",
        "_latest",
        "_no_reasoning",
        "_reasoning",
        "_settings",
        "thinking",
    )

    def __init__(self, settings: ChatSettings) -> None:
        self._settings = settings
        self.thinking = settings.thinking

    def start(self, start: StreamStart) -> list[ChatCompletionChunk]:
        settings = self._settings
        self._fingerprint = start.system_fingerprint
        self._head = (
            f'{{"id":{quote(settings.id)},"object":"chat.completion.chunk",'
            f'"created":{settings.created},"model":{quote(settings.model)},'
            f'"system_fingerprint":{_optional(start.system_fingerprint)},'
            f'"choices":[{{"index":{settings.choice},"delta":'
        )
        self._no_reasoning = ',"reasoning_content":null}' if self.thinking else "}"
        self._content = self._frame("content", '{"content":', self._no_reasoning)
        self._reasoning = self._frame("reasoning", '{"content":null,"reasoning_content":', "}")
        if self.thinking and settings.in_reasoning:
            opening, value = '{"role":"assistant","content":null,"reasoning_content":', (None, "")
            frame = self._frame("start", opening, "}", value=value)
        else:
            frame = self._frame(
                "start", '{"role":"assistant","content":', self._no_reasoning, value=("", None)
            )
        return [_chunk(frame, "")]

    def content(self, text: str, logprobs: str | None = None) -> list[ChatCompletionChunk]:
        self._latest = self._content
        frame = self._content if logprobs is None else self._scored("content", logprobs)
        return [_chunk(frame, text)]

    def reasoning(self, text: str, logprobs: str | None = None) -> list[ChatCompletionChunk]:
        self._latest = self._reasoning
        frame = self._reasoning if logprobs is None else self._scored("reasoning", logprobs)
        return [_chunk(frame, text)]

    def more(self, text: str) -> list[ChatCompletionChunk]:
        chunk = _make_chunk()
        chunk._frame = self._latest
        chunk._text = text
        return [chunk]

    def call(self, index: int, call_id: str, name: str) -> list[ChatCompletionChunk]:
        self._argument = self._frame(
            "argument",
            f'{{"tool_calls":[{{"index":{index},"function":{{"arguments":',
            "}}]}",
            value=index,
        )
        frame = self._frame(
            "call",
            f'{{"tool_calls":[{{"index":{index},"id":{quote(call_id)},"type":"function",'
            '"function":{"name":',
            ',"arguments":""}}]}',
            value=(index, call_id),
        )
        return [_chunk(frame, name)]

    def argument(self, text: str) -> list[ChatCompletionChunk]:
        chunk = _make_chunk()
        chunk._frame = self._argument
        chunk._text = text
        return [chunk]

    def finish(self, end: StreamEnd) -> list[ChatCompletionChunk]:
        totals = self._settings.totals.add(end)
        usage = _usage(totals, self.thinking) if totals is not None else None
        if usage is not None:
            closing = f',"usage":{usage}}}'
        else:
            closing = self._closing
        frame = _Frame(
            "finish",
            self._content.prefix,
            f'{self._no_reasoning},"logprobs":null,"finish_reason":"{end.reason}"}}]{closing}',
            self._settings.choice,
            self._fingerprint,
            (end.reason, usage),
        )
        return [_chunk(frame, "")]

    def ping(self) -> list[ChatCompletionChunk]:
        return []

    @property
    def _closing(self) -> str:
        return ',"usage":null}' if self._settings.null_usage else "}"

    def _frame(
        self, kind: ChunkKind, opening: str, closing: str, logprobs: str = "null", value: Any = None
    ) -> _Frame:
        return _Frame(
            kind,
            self._head + opening,
            f'{closing},"logprobs":{logprobs},"finish_reason":null}}]{self._closing}',
            self._settings.choice,
            self._fingerprint,
            value,
        )

    def _scored(self, kind: Literal["content", "reasoning"], entries: str) -> _Frame:
        """The frame of a delta with log probabilities."""
        if kind == "content":
            opening = '{"content":'
            return self._frame(
                kind, opening, self._no_reasoning, f'{{"content":[{entries}]}}', entries
            )
        opening = '{"content":null,"reasoning_content":'
        return self._frame(kind, opening, "}", f'{{"reasoning_content":[{entries}]}}', entries)


def _chunk(frame: _Frame, text: str) -> ChatCompletionChunk:
    chunk = _make_chunk()
    chunk._frame = frame
    chunk._text = text
    return chunk


def _optional(text: str | None) -> str:
    return "null" if text is None else quote(text)


def _usage(end: StreamEnd, thinking: bool) -> str:
    """The usage object (recipe.md 5.5); reasoning tokens only of a thinking generator."""
    prompt, hit, completion = end.prompt_tokens, end.cache_hit_tokens, end.completion_tokens
    details = ""
    if end.reasoning_tokens is not None and thinking:
        details = f',"completion_tokens_details":{{"reasoning_tokens":{end.reasoning_tokens}}}'
    return (
        f'{{"prompt_tokens":{prompt},"completion_tokens":{completion},'
        f'"total_tokens":{prompt + completion},"prompt_tokens_details":{{"cached_tokens":{hit}}}'
        f'{details},"prompt_cache_hit_tokens":{hit},'
        f'"prompt_cache_miss_tokens":{max(0, prompt - hit)}}}'
    )


@dataclass(slots=True)
class _Call:
    """A tool call that grows."""

    index: int
    id: str
    name: str
    arguments: list[str]

    def to_json(self) -> str:
        return (
            f'{{"index":{self.index},"id":{quote(self.id)},"type":"function","function":'
            f'{{"name":{quote(self.name)},"arguments":{quote("".join(self.arguments))}}}}}'
        )


class _Choice:
    """One choice that grows."""

    __slots__ = (
        "calls", "content", "content_logprobs", "finish_reason", "reasoning", "reasoning_logprobs"
    )  # fmt: skip

    def __init__(self) -> None:
        self.content: list[str] | None = None
        self.reasoning: list[str] | None = None
        self.calls: list[_Call] | None = None
        self.content_logprobs: list[str] = []
        self.reasoning_logprobs: list[str] = []
        self.finish_reason: str | None = None

    def add(self, frame: _Frame, text: str) -> None:
        kind = frame.kind
        if kind == "argument":
            self.calls = self.calls or []
            for call in self.calls:
                if call.index == frame.value:
                    call.arguments.append(text)
        elif kind == "call":
            index, call_id = frame.value
            self.calls = [*(self.calls or []), _Call(index, call_id, text, [])]
        elif kind == "start":
            content, reasoning = frame.value
            if content is not None:
                self._add_content(content)
            if reasoning is not None:
                self._add_reasoning(reasoning)
        elif kind == "reasoning":
            self._add_reasoning(text)
            if frame.value is not None:
                self.reasoning_logprobs.append(frame.value)
        else:
            self._add_content(text)
            if kind == "finish":
                self.finish_reason = frame.value[0]
            elif frame.value is not None:
                self.content_logprobs.append(frame.value)

    def _add_content(self, text: str) -> None:
        if self.content is None:
            self.content = []
        self.content.append(text)

    def _add_reasoning(self, text: str) -> None:
        if self.reasoning is None:
            self.reasoning = []
        self.reasoning.append(text)

    def to_json(self, index: int) -> str:
        content = None if self.content is None else "".join(self.content)
        message = f'{{"role":"assistant","content":{_optional(content)}'
        if self.reasoning is not None:
            message += f',"reasoning_content":{quote("".join(self.reasoning))}'
        if self.calls is not None:
            message += f',"tool_calls":[{",".join(call.to_json() for call in self.calls)}]'
        return (
            f'{{"index":{index},"message":{message}}},"logprobs":{self._logprobs()},'
            f'"finish_reason":{_optional(self.finish_reason)}}}'
        )

    def _logprobs(self) -> str:
        parts = []
        if self.content_logprobs:
            parts.append(f'"content":[{",".join(self.content_logprobs)}]')
        if self.reasoning_logprobs:
            parts.append(f'"reasoning_content":[{",".join(self.reasoning_logprobs)}]')
        return f"{{{','.join(parts)}}}" if parts else "null"


class ChatCompletionResponse(Value):
    """The body of a request that is not streamed, built from the chunks of its stream.

    Chunks of several choices may be mixed. `prompt_tokens` and `prompt_cache_hit_tokens` are
    accepted for symmetry: the chunks carry the usage that is reported.
    """

    __slots__ = ("_choices", "_created", "_fingerprint", "_id", "_model", "_usage")

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        self._id = string("id", id)
        self._model = string("model", model)
        self._created = unsigned("created", created, 64)
        unsigned("prompt_tokens", prompt_tokens, 64)
        unsigned("prompt_cache_hit_tokens", prompt_cache_hit_tokens, 64)
        self._choices: dict[int, _Choice] = {}
        self._fingerprint: str | None = None
        self._usage: str | None = None

    def accumulate(self, chunk: ChatCompletionChunk) -> None:
        """Add the delta of a chunk and use the chunk up."""
        frame = instance("chunk", chunk, ChatCompletionChunk)._frame
        if frame is None:
            raise consumed()
        chunk._frame = None
        choice = self._choices.get(frame.choice)
        if choice is None:
            choice = self._choices[frame.choice] = _Choice()
        choice.add(frame, chunk._text)
        self._fingerprint = frame.fingerprint
        if frame.kind == "finish" and frame.value[1] is not None:
            self._usage = frame.value[1]

    def to_json(self) -> str:
        """The response so far as compact JSON."""
        choices = ",".join(choice.to_json(index) for index, choice in sorted(self._choices.items()))
        usage = "" if self._usage is None else f'"usage":{self._usage},'
        return (
            f'{{"id":{quote(self._id)},"object":"chat.completion","created":{self._created},'
            f'"model":{quote(self._model)},"choices":[{choices}],{usage}'
            f'"system_fingerprint":{_optional(self._fingerprint)}}}'
        )

    @staticmethod
    def sse_event_name(chunk: ChatCompletionChunk) -> str | None:
        """`None`: chunks are unnamed events."""
        if instance("chunk", chunk, ChatCompletionChunk)._frame is None:
            raise consumed()
        return None

    @staticmethod
    def sse_done_data() -> str | None:
        """The data that ends a stream."""
        return "[DONE]"
