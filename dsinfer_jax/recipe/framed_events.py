"""Stream events with prepared JSON around their text, and the bodies that they add up to.

Shared by Responses and Messages, whose events say by themselves how a body changes (recipe.md 5.6,
5.7). Chunks of Chat Completions are deltas of one kind and add up on their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from dsinfer_jax.recipe.values import OutputOnly, Value, instance, wrong_type

Body = TypeVar("Body")


class Frame(Generic[Body]):
    """The JSON around the text of an event, and how the event changes an accumulated body.

    `name` is the type of the event; `apply` gets the body and the text of the event.
    """

    __slots__ = ("apply", "name", "prefix", "suffix")

    def __init__(
        self, name: str, prefix: str, suffix: str, apply: Callable[[Body, str], None] | None
    ) -> None:
        self.name = name
        self.prefix = prefix
        self.suffix = suffix
        self.apply = apply


class FramedEvent(OutputOnly):
    """One event of a stream: a delta has a text, other events are complete in their frame."""

    __slots__ = ("_frame", "_text")
    _frame: Frame[Any] | None  # None once accumulated
    _text: str | None


def consumed() -> RuntimeError:
    """The error of an event that is used a second time."""
    return RuntimeError("protocol chunk has been consumed")


Event = TypeVar("Event", bound=FramedEvent)


class FramedResponse(Value, Generic[Event]):
    """The body of a request that is not streamed, built from the events of its stream."""

    __slots__ = ()
    _event_type: ClassVar[type[FramedEvent]]

    def accumulate(self, chunk: Event) -> None:
        """Apply an event and use it up; `RuntimeError` if it is used up already."""
        if type(chunk) is not self._event_type:
            raise wrong_type("chunk", chunk, self._event_type.__name__)
        frame = chunk._frame
        if frame is None:
            raise consumed()
        chunk._frame = None
        if frame.apply is not None:
            frame.apply(self, chunk._text or "")

    @classmethod
    def sse_event_name(cls, chunk: Event) -> str | None:
        """The type of the event."""
        frame = instance("chunk", chunk, cls._event_type)._frame
        if frame is None:
            raise consumed()
        return frame.name

    @staticmethod
    def sse_done_data() -> str | None:
        """`None`: the stream ends with its last event."""
        return None
