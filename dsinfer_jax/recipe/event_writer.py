"""What a dialect must be able to write, and the numbers it needs for that (recipe.md 5.2).

The stream processor turns model output into calls of an `EventWriter`; each dialect has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from dsinfer_jax.recipe.values import OutputOnly

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class StreamStart:
    """What the backend said before the first token."""

    prompt_tokens: int = 0
    cache_hit_tokens: int = 0
    system_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended. `reasoning_tokens` is `None` where it is unknown."""

    reason: FinishReason
    stop_sequence: str | None
    prompt_tokens: int
    cache_hit_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None


class EventWriter(Protocol):
    """Writes the events of one stream in one dialect; every method returns the new events.

    `start` comes first and once, `finish` last and once. `logprobs` are the JSON entries of a
    piece, joined with commas.
    """

    thinking: bool

    def start(self, start: StreamStart) -> list[Any]: ...

    def reasoning(self, text: str, logprobs: str | None = None) -> list[Any]: ...

    def content(self, text: str, logprobs: str | None = None) -> list[Any]: ...

    def more(self, text: str) -> list[Any]:
        """More of the reasoning or content that was written last; the fast path of long texts."""

    def call(self, index: int, call_id: str, name: str) -> list[Any]: ...

    def argument(self, text: str) -> list[Any]: ...

    def finish(self, end: StreamEnd) -> list[Any]: ...

    def ping(self) -> list[Any]:
        """An event without content between start and finish, if the dialect has one."""


class ChunkGenerator(OutputOnly, Generic[Settings]):
    """The settings of one stream of a dialect; a stream processor or a `with_` method uses it up.

    A subclass makes the writer of its dialect from the settings.
    """

    __slots__ = ("_settings",)
    _settings: Settings | None

    def _take_settings(self) -> Settings:
        settings, self._settings = self._settings, None
        if settings is None:
            raise RuntimeError("chunk generator has been consumed")
        return settings

    def _take_writer(self) -> EventWriter:
        raise NotImplementedError
