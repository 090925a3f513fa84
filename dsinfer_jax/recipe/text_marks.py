"""Marks around the strings of a request that survive conversion and rendering.

Every string that may stand in a prompt gets an invisible character before and after it, from a
plane of Unicode that no text uses. The marked request is converted and rendered like any other;
where the marks end up is where the string went. So the path of a string through conversion is
found without a line of bookkeeping in the conversion itself.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from dsinfer_jax.recipe.convert_messages import BILLING_LINE
from dsinfer_jax.recipe.json_text import JsonSyntaxError, read_json

FIRST_OPEN = 0xF0000
FIRST_CLOSE = 0x100000
MOST_MARKS = 0xFFFE
_TEXT_KEYS = (
    "content",
    "input",
    "instructions",
    "name",
    "output",
    "reasoning_content",
    "system",
    "text",
    "thinking",
)
# Names below these keys are checked for their letters, schemas for their meaning.
_UNMARKED_KEYS = ("tools", "tool_choice", "response_format", "metadata", "source")


class Mark(NamedTuple):
    """Where marked text stands in a prompt and which place of the request it comes from."""

    start: int
    end: int
    source: str


class TextMarks:
    """Marks the strings of a body and finds them again in a prompt."""

    def __init__(self) -> None:
        self._sources: list[str] = []

    def mark(self, body: Any, path: str = "", key: str = "") -> Any:
        """A copy of ``body`` with marks around its strings."""
        if isinstance(body, str):
            return self._mark_string(body, path, key)
        if isinstance(body, list):
            return [self.mark(item, f"{path}[{place}]", key) for place, item in enumerate(body)]
        if not isinstance(body, dict):
            return body
        if key == "input" and body.get("type") is None and "role" not in body:
            return self._mark_arguments(body, path)
        return {
            name: value
            if name in _UNMARKED_KEYS
            else self.mark(value, f"{path}.{name}" if path else name, name)
            for name, value in body.items()
        }

    def _mark_string(self, text: str, path: str, key: str) -> str:
        if key == "arguments":
            try:
                arguments = read_json(text)
            except JsonSyntaxError:
                return self._wrap(text, path)
            if not isinstance(arguments, dict):
                return self._wrap(text, path)
            return json.dumps(self._mark_arguments(arguments, path), ensure_ascii=False)
        if key not in _TEXT_KEYS or text.startswith(BILLING_LINE):
            return text
        return self._wrap(text, path)

    def _mark_arguments(self, arguments: dict[str, Any], path: str) -> dict[str, Any]:
        return {
            self._wrap(name, f"{path}.{name}"): self._wrap(value, f"{path}.{name}")
            if isinstance(value, str)
            else value
            for name, value in arguments.items()
        }

    def _wrap(self, text: str, path: str) -> str:
        number = len(self._sources)
        if not text or number >= MOST_MARKS:  # an empty string must stay empty
            return text
        self._sources.append(path)
        return chr(FIRST_OPEN + number) + text + chr(FIRST_CLOSE + number)

    def find(self, marked: str) -> tuple[str, list[Mark]]:
        """The text without marks, and where each mark stood in it."""
        plain: list[str] = []
        found: list[Mark] = []
        opened: dict[int, int] = {}
        for character in marked:
            code = ord(character)
            if code < FIRST_OPEN:
                plain.append(character)
            elif code < FIRST_CLOSE:
                opened[code - FIRST_OPEN] = len(plain)
            elif code - FIRST_CLOSE in opened:
                number = code - FIRST_CLOSE
                found.append(Mark(opened.pop(number), len(plain), self._sources[number]))
        return "".join(plain), sorted(found)
