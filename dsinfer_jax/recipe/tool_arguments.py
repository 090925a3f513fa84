"""Tool arguments written as JSON text while they arrive (recipe.md 5.1, the argument stages).

A writer turns the argument effects of the grammar into the next piece of JSON, or `None` when there
is nothing to send. It does not know how the pieces travel.
"""

from __future__ import annotations

from typing import Protocol

from dsinfer_jax.recipe.actions import Effect
from dsinfer_jax.recipe.json_text import JsonSyntaxError, read_json
from dsinfer_jax.recipe.json_values import quote
from dsinfer_jax.recipe.stream_report import StreamReport


class ArgumentWriter(Protocol):
    """The arguments of one call after another."""

    def begin(self) -> None:
        """A call begins."""

    def write(self, effect: Effect, text: str) -> str | None:
        """The JSON text for a marker (`text` is empty) or for a piece of a name or a value."""

    def end(self) -> str | None:
        """The output ends; what is held back goes out as it is."""


def is_json(text: str) -> bool:
    """Whether the text is one JSON value by the letter of the standard."""
    try:
        read_json(text)
    except JsonSyntaxError:
        return False
    return True


# Looked up once: attribute look-up on an enumeration is slow in Python 3.11.
_STRING_TEXT = Effect.STRING_TEXT
_JSON_TEXT = Effect.JSON_TEXT
_PARAMETER_NAME = Effect.PARAMETER_NAME
_PARAMETER_BEGINS = Effect.PARAMETER_BEGINS
_ARGUMENTS_END = Effect.ARGUMENTS_END
_LABELS = {
    Effect.PARAMETER_NAME_ENDS: ": ",
    Effect.STRING_BEGINS: '"',
    Effect.STRING_ENDS: '"',
}


class OfficialArguments:
    """The official rules: names and JSON values are copied as they are, broken or not."""

    __slots__ = ("_first", "_report", "_value")

    def __init__(self, report: StreamReport) -> None:
        self._report = report
        self._first = True
        self._value: list[str] = []

    def begin(self) -> None:
        self._first = True

    def write(self, effect: Effect, text: str) -> str | None:
        label = _LABELS.get(effect)
        if label is not None:
            return label
        if effect is _STRING_TEXT:
            return quote(text)[1:-1]
        if effect is _JSON_TEXT:
            self._value.append(text)
            return text
        if effect is _PARAMETER_NAME:
            return text
        if effect is _PARAMETER_BEGINS:
            label = "{" if self._first else ", "
            self._first = False
            return label
        if effect is _ARGUMENTS_END:
            return "{}" if self._first else "}"
        if effect is Effect.JSON_ENDS:
            self._check_value()
        return None

    def _check_value(self) -> None:
        if not is_json("".join(self._value)):
            self._report.broken["argument_json"] += 1
        self._value.clear()

    def end(self) -> str | None:
        return None


class StrictArguments:
    """Arguments that always parse once the call is closed.

    A name may hold anything and is escaped; a value that is not JSON becomes a string; a parameter
    without a value is left out. Strings are sent as they arrive, other values when they are
    complete.
    """

    __slots__ = ("_first", "_name", "_report", "_value")

    def __init__(self, report: StreamReport) -> None:
        self._report = report
        self._first = True
        self._name: list[str] = []
        self._value: list[str] = []

    def begin(self) -> None:
        self._first = True

    def write(self, effect: Effect, text: str) -> str | None:
        if effect is Effect.STRING_TEXT:
            return quote(text)[1:-1]
        if effect is Effect.JSON_TEXT:
            self._value.append(text)
        elif effect is Effect.PARAMETER_NAME:
            self._name.append(text)
        elif effect is Effect.STRING_BEGINS:
            return self._named() + '"'
        elif effect is Effect.STRING_ENDS:
            return '"'
        elif effect is Effect.JSON_BEGINS:
            return self._named()
        elif effect is Effect.JSON_ENDS:
            return self._complete_value()
        elif effect is Effect.PARAMETER_LOST:
            self._name.clear()
            self._report.dropped["parameter_without_value"] += 1
        elif effect is Effect.ARGUMENTS_END:
            return "{}" if self._first else "}"
        return None

    def _named(self) -> str:
        """The separator, the name and the colon of the parameter whose value begins."""
        written = "".join(self._name)
        self._name.clear()
        name = written.removeprefix('"')
        # The official reader copies `"name"` and stops at a blank: anything else breaks its JSON.
        if not written.startswith('"') or " " in name or quote(name) != f'"{name}"':
            self._report.repaired["parameter_name"] += 1
        separator = "{" if self._first else ", "
        self._first = False
        return f"{separator}{quote(name)}: "

    def _complete_value(self) -> str:
        value = "".join(self._value)
        self._value.clear()
        if is_json(value):
            return value
        self._report.repaired["argument_json"] += 1
        return quote(value)

    def end(self) -> str | None:
        held = "".join(self._value)
        self._value.clear()
        return held or None
