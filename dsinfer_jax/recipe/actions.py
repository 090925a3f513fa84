"""What portions of model output mean (recipe.md 5.1, 5.2)."""

from __future__ import annotations

from enum import IntEnum, auto


class Effect(IntEnum):
    """What becomes of a portion of the output."""

    CONTENT = auto()
    REASONING = auto()
    BLANK = auto()  # text around JSON output: one blank stands for it
    CONTENT_LABEL = auto()  # the marker itself is content
    STOP = auto()
    IGNORE = auto()  # recognised markup, or text that is dropped (then the action has a place)
    CALL_BEGINS = auto()
    NAME_TEXT = auto()
    NAME_ENDS = auto()
    PARAMETER_BEGINS = auto()
    PARAMETER_NAME = auto()
    PARAMETER_NAME_ENDS = auto()
    STRING_BEGINS = auto()
    STRING_TEXT = auto()
    STRING_ENDS = auto()
    JSON_BEGINS = auto()
    JSON_TEXT = auto()
    JSON_ENDS = auto()
    PARAMETER_LOST = auto()  # strict only: a parameter closed before it had a value
    ARGUMENTS_END = auto()


# Effects whose every portion is text; all others are markers that count once.
_TEXT_EFFECTS = frozenset(
    {
        Effect.CONTENT,
        Effect.REASONING,
        Effect.BLANK,
        Effect.NAME_TEXT,
        Effect.PARAMETER_NAME,
        Effect.STRING_TEXT,
        Effect.JSON_TEXT,
    }
)


class Action:
    """An effect with its text (labels, stop sequences) and the place at which dropped text counts.

    Actions compare by identity: two markers in a row are two actions even when they look alike.
    """

    __slots__ = ("effect", "is_ignored", "is_text", "place", "text")

    def __init__(self, effect: Effect, text: str = "", place: str | None = None) -> None:
        self.effect = effect
        self.text = text
        self.place = place
        self.is_text = effect in _TEXT_EFFECTS
        self.is_ignored = effect is Effect.IGNORE
