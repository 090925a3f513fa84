"""The free text of a custom tool, taken out of its JSON arguments (recipe.md 5.6)."""

from __future__ import annotations

import re

_OPENING = '{"input":"'
_BLANKS_AT = frozenset({1, 8, 9})  # places in the opening at which JSON allows blanks
_BLANKS = " \t\n\r"
_PLAIN = re.compile(r'[^"\\]*')
_SIMPLE = {
    r"\"": '"',
    r"\\": "\\",
    r"\/": "/",
    r"\b": "\b",
    r"\f": "\f",
    r"\n": "\n",
    r"\r": "\r",
    r"\t": "\t",
}
_HEX = "[0-9a-fA-F]"
_HIGH = f"[dD][89abAB]{_HEX}{{2}}"
_BROKEN = f"{_HEX}{{0,3}}[^0-9a-fA-F]"
# One escape with, if it is broken, the character that breaks it. A high surrogate takes along what
# follows it, since only together they mean something.
_ESCAPE = re.compile(
    rf"\\(?:[^u]|u(?:{_BROKEN}|{_HIGH}(?:[^\\]|\\(?:[^u]|u(?:{_BROKEN}|{_HEX}{{4}})))"
    rf"|(?!{_HIGH}){_HEX}{{4}}))",
    re.DOTALL,
)
_CODE = re.compile(rf"\\u(?![dD][89a-fA-F])({_HEX}{{4}})")
_PAIR = re.compile(rf"\\u({_HIGH})\\u([dD][c-fC-F]{_HEX}{{2}})")


class CustomToolInput:
    """Takes the text out of `{"input": "..."}` while the arguments arrive in pieces.

    Arguments that begin otherwise are passed on raw, what was held back first; so are escapes that
    mean nothing. What follows the closing quote is dropped.
    """

    __slots__ = ("_held", "_matched", "_state")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._matched = 0  # characters of the opening
        self._state = "opening"  # then "text" and "done", or "raw"

    def feed(self, piece: str) -> str | None:
        """The next piece of input, `None` if there is nothing to send."""
        if self._state == "opening":
            piece = self._open(piece)
        if self._state == "text":
            piece = self._decode(self._take_held() + piece)
        elif self._state == "done":
            return None
        return piece or None

    def end(self) -> str | None:
        """What is still held back when the call ends."""
        return self._take_held() or None

    def _take_held(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held

    def _open(self, piece: str) -> str:
        """Match the opening; returns what follows it, or everything if it does not match."""
        for position, character in enumerate(piece):
            if character == _OPENING[self._matched]:
                self._matched += 1
                if self._matched == len(_OPENING):
                    self._held.clear()
                    self._state = "text"
                    return piece[position + 1 :]
            elif self._matched not in _BLANKS_AT or character not in _BLANKS:
                self._state = "raw"
                return self._take_held() + piece
        self._held.append(piece)
        return ""

    def _decode(self, text: str) -> str:
        """Undo escapes up to the closing quote; an escape that was cut waits."""
        decoded: list[str] = []
        position = 0
        while position < len(text):
            plain = _PLAIN.match(text, position)
            assert plain is not None
            decoded.append(plain[0])
            position = plain.end()
            if text[position : position + 1] == '"':
                self._state = "done"
                break
            escape = _ESCAPE.match(text, position)
            if escape is None:
                self._held.append(text[position:])
                break
            decoded.append(_unescape(escape[0]))
            position = escape.end()
        return "".join(decoded)


def _unescape(escape: str) -> str:
    """The character of an escape; the escape itself if it means none."""
    simple = _SIMPLE.get(escape)
    if simple is not None:
        return simple
    code = _CODE.fullmatch(escape)
    if code is not None:
        return chr(int(code[1], 16))
    pair = _PAIR.fullmatch(escape)
    if pair is not None:
        high, low = int(pair[1], 16), int(pair[2], 16)
        return chr(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF))
    return escape
