"""Strings as the reference prints them in messages and in ``repr``."""

from __future__ import annotations

from unicodedata import category

_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def debug_quote(text: str) -> str:
    """``text`` in double quotes; what does not print by itself is written ``\\u{...}``."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_escape, text)) + '"'


def debug_option(text: str | None) -> str:
    """An optional string as ``None`` or ``Some("...")``."""
    return "None" if text is None else f"Some({debug_quote(text)})"


def _escape(character: str) -> str:
    short = _SHORT.get(character)
    if short is not None:
        return short
    if character.isprintable() and category(character) not in ("Mn", "Me"):
        return character
    return f"\\u{{{ord(character):x}}}"
