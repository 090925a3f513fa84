"""What the backend hands over, and how its output is to be read.

`InferenceChunk` is one update of the backend; `ParsingOptions` are the settings of the parser that
conversion derives from a request (recipe.md 1.2, 5). Knows nothing about dialects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from dsinfer_jax.recipe.special_tokens import SpecialTokens
from dsinfer_jax.recipe.values import (
    Enumeration,
    OutputOnly,
    Value,
    boolean,
    instance,
    maker,
    optional_string,
    sequence,
    string,
    unsigned,
    wrong_type,
)

TokenLogprob = tuple[float, list[tuple[int, float]]]
"""The log probability of a token and its most likely alternatives as (id, log probability)."""


class InferenceFinishReason(Enumeration):
    """Why the backend stopped; the reason a client sees also depends on the parsed output."""

    __slots__ = ()
    Stop: ClassVar[InferenceFinishReason]
    Length: ClassVar[InferenceFinishReason]
    ContentFilter: ClassVar[InferenceFinishReason]


class ThinkingInitialStage(Enumeration):
    """Where reading begins when thinking is on.

    `ReasoningStart`: reasoning of a new turn, leading line breaks dropped. `ReasoningContinuation`
    and `ContentContinuation`: the rest of a prefix that ended in reasoning or in content, leading
    line breaks kept.
    """

    __slots__ = ()
    ReasoningStart: ClassVar[ThinkingInitialStage]
    ReasoningContinuation: ClassVar[ThinkingInitialStage]
    ContentContinuation: ClassVar[ThinkingInitialStage]

    def starts_in_reasoning(self) -> bool:
        """Whether the first text is reasoning."""
        return self is not ThinkingInitialStage.ContentContinuation


class PromptUsage(Value):
    """Token counts of the prompt as the backend reports them (both in [0, 2^64))."""

    __slots__ = ("_prompt_cache_hit_tokens", "_prompt_tokens")
    _prompt_tokens: int
    _prompt_cache_hit_tokens: int

    def __new__(cls, *, prompt_tokens: int = 0, prompt_cache_hit_tokens: int = 0) -> PromptUsage:
        self = object.__new__(cls)
        self._prompt_tokens = unsigned("prompt_tokens", prompt_tokens, 64)
        self._prompt_cache_hit_tokens = unsigned(
            "prompt_cache_hit_tokens", prompt_cache_hit_tokens, 64
        )
        return self

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, each image counted at its full length."""
        return self._prompt_tokens

    @property
    def prompt_cache_hit_tokens(self) -> int:
        """How many of them were found in the prefix cache."""
        return self._prompt_cache_hit_tokens


class InferenceChunk(OutputOnly):
    """One update of the backend, made by `ready`, `text`, `tokens` or `finish`.

    Properties that do not belong to the kind are `None`. A chunk may be pushed several times.
    """

    # The meaning of value and detail by kind: ready (usage, fingerprint), text (content, count),
    # tokens (ids, log probabilities), finish (reason, None).
    __slots__ = ("_detail", "_kind", "_value")
    _kind: Literal["ready", "text", "tokens", "finish"]
    _value: Any
    _detail: Any

    @staticmethod
    def ready(
        *, prompt_usage: PromptUsage | None = None, system_fingerprint: str | None = None
    ) -> InferenceChunk:
        """The prompt was read; a stream counts the first of these only."""
        chunk = _make_chunk()
        chunk._kind = "ready"
        if prompt_usage is None:
            chunk._value = PromptUsage()
        else:
            chunk._value = instance("prompt_usage", prompt_usage, PromptUsage)
        chunk._detail = optional_string("system_fingerprint", system_fingerprint)
        return chunk

    @staticmethod
    def text(content: str, token_count: int = 0) -> InferenceChunk:
        """A piece of output text and the number of tokens it accounts for."""
        if type(content) is not str or not content.isascii():
            content = string("content", content)
        if type(token_count) is not int or not 0 <= token_count < 1 << 64:
            token_count = unsigned("token_count", token_count, 64)
        chunk = _make_chunk()
        chunk._kind = "text"
        chunk._value = content
        chunk._detail = token_count
        return chunk

    @staticmethod
    def tokens(
        token_ids: Sequence[int],
        logprobs: Sequence[tuple[float, Sequence[tuple[int, float]]]] | None = None,
    ) -> InferenceChunk:
        """Output ids; `logprobs` has one `(logprob, [(id, logprob), ...])` per id.

        A different number of log probabilities is an error of the stream, not of this call.
        """
        ids = list(token_ids) if type(token_ids) is list else sequence("token_ids", token_ids)
        for position, token_id in enumerate(ids):
            if type(token_id) is not int or not 0 <= token_id < 1 << 32:
                ids[position] = unsigned("token_ids", token_id, 32)
        chunk = _make_chunk()
        chunk._kind = "tokens"
        chunk._value = ids
        chunk._detail = None if logprobs is None else _token_logprobs(logprobs)
        return chunk

    @staticmethod
    def finish(finish_reason: InferenceFinishReason) -> InferenceChunk:
        """The end of the output."""
        chunk = _make_chunk()
        chunk._kind = "finish"
        chunk._value = instance("finish_reason", finish_reason, InferenceFinishReason)
        chunk._detail = None
        return chunk

    @property
    def kind(self) -> Literal["ready", "text", "tokens", "finish"]:
        return self._kind

    @property
    def content(self) -> str | None:
        return self._value if self._kind == "text" else None

    @property
    def token_ids(self) -> list[int] | None:
        return list(self._value) if self._kind == "tokens" else None

    @property
    def finish_reason(self) -> InferenceFinishReason | None:
        return self._value if self._kind == "finish" else None

    @property
    def prompt_usage(self) -> PromptUsage | None:
        return self._value if self._kind == "ready" else None

    @property
    def token_count(self) -> int | None:
        """Tokens that a text chunk accounts for."""
        return self._detail if self._kind == "text" else None

    @property
    def system_fingerprint(self) -> str | None:
        return self._detail if self._kind == "ready" else None


_make_chunk = maker(InferenceChunk)


def _token_logprobs(logprobs: Any) -> list[TokenLogprob]:
    entries = []
    for entry in sequence("logprobs", logprobs):
        logprob, alternatives = _pair(entry)
        pairs = [_pair(alternative) for alternative in sequence("logprobs", alternatives)]
        entries.append(
            (
                _real(logprob),
                [(unsigned("logprobs", token, 32), _real(value)) for token, value in pairs],
            )
        )
    return entries


def _pair(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple):
        raise wrong_type("logprobs", value, "tuple")
    if len(value) != 2:
        raise ValueError(f"expected tuple of length 2, but got tuple of length {len(value)}")
    return value


def _real(value: Any) -> float:
    try:
        return value.__float__()  # float() would also read strings
    except AttributeError:
        given = type(value).__name__
        raise TypeError(f"argument 'logprobs': must be real number, not {given}") from None


class ParsingOptions(Value):
    """How to read the output of a request; every property can be set.

    Args:
        parse_tool_calls: look for tool call markup.
        starts_in_tool_calls: the prompt already opened the block (wins over the stage).
        parse_json_output: recognise fenced or bare JSON; one blank stands for text around it.
        thinking_initial_stage: where reading begins; `None` when thinking is off.
        stop_sequences: texts that end the content.
        special_tokens: the spellings of the control tokens.
        strict: repair what the official rules leave broken (an extension, see
            `docs/recipe_streaming.md`): no control ids in text, arguments that are always JSON,
            blanks that do not depend on how the output was cut.
    """

    __slots__ = (
        "_parse_json_output",
        "_parse_tool_calls",
        "_special_tokens",
        "_starts_in_tool_calls",
        "_stop_sequences",
        "_strict",
        "_thinking_initial_stage",
    )
    _parse_tool_calls: bool
    _starts_in_tool_calls: bool
    _parse_json_output: bool
    _thinking_initial_stage: ThinkingInitialStage | None
    _stop_sequences: list[str]
    _special_tokens: SpecialTokens
    _strict: bool

    def __new__(
        cls,
        *,
        parse_tool_calls: bool = True,
        starts_in_tool_calls: bool = False,
        parse_json_output: bool = False,
        thinking_initial_stage: ThinkingInitialStage | None = None,
        stop_sequences: Sequence[str] | None = None,
        special_tokens: SpecialTokens | None = None,
        strict: bool = False,
    ) -> ParsingOptions:
        self = object.__new__(cls)
        self._parse_tool_calls = boolean("parse_tool_calls", parse_tool_calls)
        self._starts_in_tool_calls = boolean("starts_in_tool_calls", starts_in_tool_calls)
        self._parse_json_output = boolean("parse_json_output", parse_json_output)
        self._thinking_initial_stage = _stage("thinking_initial_stage", thinking_initial_stage)
        self._stop_sequences = (
            [] if stop_sequences is None else _strings("stop_sequences", stop_sequences)
        )
        self._special_tokens = (
            SpecialTokens()
            if special_tokens is None
            else instance("special_tokens", special_tokens, SpecialTokens)
        )
        self._strict = boolean("strict", strict)
        return self

    @property
    def parse_tool_calls(self) -> bool:
        return self._parse_tool_calls

    @parse_tool_calls.setter
    def parse_tool_calls(self, value: bool) -> None:
        self._parse_tool_calls = boolean("value", value)

    @property
    def starts_in_tool_calls(self) -> bool:
        return self._starts_in_tool_calls

    @starts_in_tool_calls.setter
    def starts_in_tool_calls(self, value: bool) -> None:
        self._starts_in_tool_calls = boolean("value", value)

    @property
    def parse_json_output(self) -> bool:
        return self._parse_json_output

    @parse_json_output.setter
    def parse_json_output(self, value: bool) -> None:
        self._parse_json_output = boolean("value", value)

    @property
    def thinking_initial_stage(self) -> ThinkingInitialStage | None:
        return self._thinking_initial_stage

    @thinking_initial_stage.setter
    def thinking_initial_stage(self, value: ThinkingInitialStage | None) -> None:
        self._thinking_initial_stage = _stage("value", value)

    @property
    def stop_sequences(self) -> list[str]:
        return list(self._stop_sequences)

    @stop_sequences.setter
    def stop_sequences(self, value: Sequence[str]) -> None:
        self._stop_sequences = _strings("value", value)

    @property
    def special_tokens(self) -> SpecialTokens:
        return self._special_tokens

    @special_tokens.setter
    def special_tokens(self, value: SpecialTokens) -> None:
        self._special_tokens = instance("value", value, SpecialTokens)

    @property
    def strict(self) -> bool:
        return self._strict

    @strict.setter
    def strict(self, value: bool) -> None:
        self._strict = boolean("value", value)


def _stage(name: str, value: Any) -> ThinkingInitialStage | None:
    return None if value is None else instance(name, value, ThinkingInitialStage)


def _strings(name: str, value: Any) -> list[str]:
    return [string(name, item) for item in sequence(name, value)]
