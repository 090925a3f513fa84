"""Whether a text is a regular expression as the reference understands it (recipe.md 2.9).

The reference has two readers: the engine that compiles patterns, and a checker of the ECMAScript
grammar for the format ``regex`` of old drafts. This is a recogniser of both, found by trying;
nothing is matched. What it cannot decide (names of Unicode properties, sizes near the engine's
limit) it accepts.
"""

from __future__ import annotations

import re

_FLAGS = "imsuxUR"
_ECMA_FLAGS = "ims"
_NAME = re.compile(r"[^\W\d]\w*")
_ECMA_REPEAT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_REPEAT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_CODE_POINT = re.compile(
    r"x\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})|u\{([0-9A-Fa-f]+)\}|u([0-9A-Fa-f]{4})"
    r"|U([0-9A-Fa-f]{8})"
)
_ECMA_CODE_POINT = re.compile(r"x([0-9A-Fa-f]{2})|u\{([0-9A-Fa-f]+)\}|u([0-9A-Fa-f]{4})")
_ECMA_PROPERTY = re.compile(r"[pP]\{([A-Za-z0-9_=]+)\}")
_PROPERTY = re.compile(r"[pP](?:\{\^?([A-Za-z0-9_=: -]+)\}|([A-Z]))")
_CATEGORIES = (
    " L Lu Ll Lt Lm Lo LC M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
    "C Cc Cf Cs Co Cn "
)
_CLASSES = "dDwWsS"
_CONTROLS = "vfnrt"
_ASSERTIONS = "bBAz"
# A repeat is copied by the engine; beyond this many copies it gives up.
_MAXIMUM_COPIES = 500_000


class _RefusedError(Exception):
    """The text is not in the grammar."""


def is_regular_expression(text: str, ecma: bool = False) -> bool:
    """Whether the engine compiles ``text``, or with ``ecma`` whether the checker accepts it."""
    try:
        _Recogniser(text, ecma).run()
    except (_RefusedError, RecursionError):
        return False
    return True


class _Recogniser:
    """A recursive descent over the text; every method returns the size in copies."""

    def __init__(self, text: str, ecma: bool) -> None:
        self._text = text
        self._ecma = ecma
        self._at = 0
        self._groups = 0
        self._names: set[str] = set()
        self._all_names: set[str] = set()
        self._named_references: set[str] = set()
        self._highest_reference = 0

    def run(self) -> None:
        self._alternatives()
        if self._at < len(self._text) or self._highest_reference > self._groups:
            raise _RefusedError
        if not self._named_references <= self._all_names:
            raise _RefusedError

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _take_match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _alternatives(self) -> int:
        before = set(self._names)
        size = self._sequence()
        while self._take("|"):
            if self._ecma:  # alternatives may use the same names
                self._names = set(before)
            size += self._sequence()
        self._names |= self._all_names
        return size

    def _sequence(self) -> int:
        size = 0
        while self._next() not in ("", "|", ")"):
            size += self._repeated()
        return size

    def _repeated(self) -> int:
        size, repeatable = self._atom()
        while self._next() and self._next() in "*+?{":
            if not repeatable:
                raise _RefusedError
            size *= self._quantifier()
            if size > _MAXIMUM_COPIES and not self._ecma:
                raise _RefusedError
            if not self._take("?") and not self._ecma:
                self._take("+")
            # Only a counted repeat may follow another repeat, and only for the engine.
            if self._next() and self._next() in ("*+?{" if self._ecma else "*+?"):
                raise _RefusedError
        return size

    def _quantifier(self) -> int:
        if self._next() != "{":
            self._at += 1
            return 1
        found = self._take_match(_ECMA_REPEAT if self._ecma else _REPEAT)
        if found is None:
            raise _RefusedError
        least, most = int(found[1]), int(found[3] or found[1])
        if most < least or (most >= 1 << 32 and not self._ecma):
            raise _RefusedError
        return max(1, most)

    def _atom(self) -> tuple[int, bool]:
        """The size of an atom, and whether it may be repeated."""
        character = self._next()
        self._at += 1
        if character in "*+?{" or (self._ecma and character in "]}"):
            raise _RefusedError
        if character == "(":
            return self._group()
        if character == "[":
            self._class()
        elif character == "\\":
            return 1, self._escape()
        return 1, not (self._ecma and character in "^$")

    def _group(self) -> tuple[int, bool]:
        if not self._take("?"):
            self._groups += 1
            return self._close_group(), True
        if any(map(self._take, ("=", "!", "<=", "<!"))):
            return self._close_group(), False
        if (self._take("P<") and not self._ecma) or self._take("<"):
            name = self._take_match(_NAME)
            if name is None or name[0] in self._names or not self._take(">"):
                raise _RefusedError
            self._names.add(name[0])
            self._all_names.add(name[0])
            self._groups += 1
            return self._close_group(), True
        if self._flags():
            size = self._close_group()
            return size, size > 0 or self._ecma
        if self._ecma:
            raise _RefusedError
        return 0, False

    def _close_group(self) -> int:
        size = self._alternatives()
        if not self._take(")"):
            raise _RefusedError
        return size

    def _flags(self) -> bool:
        """Read flags; whether a group follows (``:``) or not (``)``)."""
        seen: set[str] = set()
        negated = False
        while (character := self._next()) not in (":", ")"):
            if character == "-" and not negated:
                negated = True
            elif character and character not in seen and self._is_flag(character):
                seen.add(character)
            else:
                raise _RefusedError
            self._at += 1
        self._at += 1
        if character == ")" and not seen:
            raise _RefusedError
        return character == ":"

    def _is_flag(self, character: str) -> bool:
        return character in (_ECMA_FLAGS if self._ecma else _FLAGS)

    def _escape(self) -> bool:
        """An escape outside classes; whether it may be repeated."""
        character = self._next()
        if self._ecma and self._take("k<"):
            name = self._take_match(_NAME)
            if name is None or not self._take(">"):
                raise _RefusedError
            self._named_references.add(name[0])
            return True
        if character and character in "123456789":
            start = self._at
            while self._next().isdigit():
                self._at += 1
            self._highest_reference = max(
                self._highest_reference, int(self._text[start : self._at])
            )
        elif character and character in ("bB" if self._ecma else _ASSERTIONS):
            self._at += 1
            return not self._ecma
        else:
            self._class_escape()
        return True

    def _class_escape(self) -> int | None:
        """An escape that is allowed in classes too; its code point, or ``None`` for a set."""
        character = self._next()
        code = self._take_match(_ECMA_CODE_POINT if self._ecma else _CODE_POINT)
        if code is not None:
            point = int(next(group for group in code.groups() if group), 16)
            if point > 0x10FFFF or (0xD800 <= point <= 0xDFFF and not self._ecma):
                raise _RefusedError
            return point
        if self._ecma and self._take_match(_ECMA_PROPERTY):
            return None
        found = None if self._ecma else self._take_match(_PROPERTY)
        if found is not None:
            name = found[1] or found[2]
            if len(name) < 3 and f" {name} " not in _CATEGORIES:
                raise _RefusedError
            return None
        if self._ecma and self._take("0"):
            if self._next().isdigit():
                raise _RefusedError
            return 0
        self._at += 1
        if character == "c":
            control = self._next()
            if not (control.isascii() and control.isalpha()):
                raise _RefusedError
            self._at += 1
            return ord(control.upper()) - 64
        if character and character in _CLASSES:
            return None
        if character and character in _CONTROLS:
            return ord(character)
        if not character.isascii() or character.isalnum() or not character:
            raise _RefusedError
        return ord(character)

    def _class(self) -> None:
        """A class in brackets; for the engine a bracket right after the first is a literal."""
        self._take("^")
        first = not self._ecma
        while first or self._next() != "]":
            if not self._next() or (self._take("--") and self._next() != "]"):
                raise _RefusedError
            if self._next() == "]" and not first:
                break
            low = self._class_item()
            first = False
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", "-"):
                self._at += 1
                high = self._class_item()
                if low is None or high is None or high < low:
                    raise _RefusedError
        self._at += 1

    def _class_item(self) -> int | None:
        character = self._next()
        if not character:
            raise _RefusedError
        self._at += 1
        if character == "\\":
            return 8 if self._ecma and self._take("b") else self._class_escape()
        return ord(character)
