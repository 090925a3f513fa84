"""Reading JSON text as strictly as the reference does (recipe.md 2.1).

The standard library's parser does the work. Only when it refuses, or accepts what the reference
does not, a slow scanner walks the bytes to find the official message and position.
"""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Any, NoReturn

# The reference counts down from 128, so 127 open containers are the most.
MAXIMUM_CONTAINERS = 127
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_WHITESPACE = b" \t\n\r"
_DIGITS = b"0123456789"
_ESCAPES = b'"\\/bfnrt'


class JsonSyntaxError(ValueError):
    """Text that is not JSON; the message ends with the position where that is known."""


def read_json(text: str) -> Any:
    """The value of ``text``; ``JsonSyntaxError`` (without position) if it is not strict JSON.

    Duplicate keys keep the last value at the first place, integers beyond 64 bits become floats.
    """
    try:
        value = _decode(text)
    except (ValueError, RecursionError):
        raise JsonSyntaxError("not JSON") from None
    if "\\u" in text and _LONE_SURROGATE.search(text):
        find_fault(text.encode())
    if text.count("{") + text.count("[") > MAXIMUM_CONTAINERS and _too_deep(value):
        raise JsonSyntaxError("recursion limit exceeded")
    return value


def read_body(body: str | bytes) -> Any:
    """Like ``read_json``, but the error tells what is wrong and where."""
    try:
        return read_json(body if isinstance(body, str) else str(body, "utf-8"))
    except ValueError:
        find_fault(body if isinstance(body, bytes) else body.encode())
        raise


def find_fault(data: bytes) -> None:
    """Raise ``JsonSyntaxError`` with the official message if ``data`` is not strict JSON."""
    _Scanner(data).scan()


def _read_integer(text: str) -> int | float:
    if len(text) > 20:
        return _read_float(text)
    value = int(text)
    if -(1 << 63) <= value < 1 << 64:
        return -0.0 if text == "-0" else value
    return float(value)


def _read_float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError("number out of range")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_decode = json.JSONDecoder(
    parse_int=_read_integer, parse_float=_read_float, parse_constant=_refuse_constant
).decode


def _too_deep(value: Any) -> bool:
    """Whether more than 127 containers lie in each other, level by level."""
    level = [value] if isinstance(value, dict | list) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAXIMUM_CONTAINERS:
            return True
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) is dict or type(child) is list
        ]
    return False


class _Scanner:
    """A strict walk over the bytes that stops at the first fault.

    Two kinds of position: ``_fail`` counts the bytes taken so far, ``_fail_next`` one more, the
    byte that was looked at and not taken. A column is a number of bytes since the last newline.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._index = 0
        self._depth = 0

    def scan(self) -> None:
        self._value()
        if self._skip_whitespace() is not None:
            self._fail_next("trailing characters")

    def _fail(self, message: str) -> NoReturn:
        self._fail_at(message, self._index)

    def _fail_next(self, message: str) -> NoReturn:
        self._fail_at(message, min(len(self._data), self._index + 1))

    def _fail_at(self, message: str, position: int) -> NoReturn:
        line_start = self._data.rfind(b"\n", 0, position) + 1
        line = 1 + self._data.count(b"\n", 0, line_start)
        raise JsonSyntaxError(f"{message} at line {line} column {position - line_start}")

    def _peek(self) -> int | None:
        return self._data[self._index] if self._index < len(self._data) else None

    def _take(self) -> int | None:
        byte = self._peek()
        if byte is not None:
            self._index += 1
        return byte

    def _skip_whitespace(self) -> int | None:
        while (byte := self._peek()) is not None and byte in _WHITESPACE:
            self._index += 1
        return byte

    def _value(self) -> None:
        byte = self._skip_whitespace()
        if byte is None:
            self._fail_next("EOF while parsing a value")
        elif byte in b"tfn":
            self._index += 1
            self._ident({116: b"rue", 102: b"alse", 110: b"ull"}[byte])
        elif byte == ord("-"):
            self._index += 1
            self._number()
        elif byte in _DIGITS:
            self._number()
        elif byte == ord('"'):
            self._index += 1
            self._string()
        elif byte in b"[{":
            self._depth += 1
            if self._depth > MAXIMUM_CONTAINERS:
                self._fail_next("recursion limit exceeded")
            self._index += 1
            if byte == ord("["):
                self._list()
            else:
                self._object()
            self._depth -= 1
        else:
            self._fail_next("expected value")

    def _ident(self, rest: bytes) -> None:
        for expected in rest:
            byte = self._take()
            if byte is None:
                self._fail("EOF while parsing a value")
            if byte != expected:
                self._fail("expected ident")

    def _digits(self) -> int:
        start = self._index
        while (byte := self._peek()) is not None and byte in _DIGITS:
            self._index += 1
        return self._index - start

    def _number(self) -> None:
        start = self._index
        first = self._take()
        if first is None:
            self._fail("EOF while parsing a value")
        if first not in _DIGITS:
            self._fail("invalid number")
        follower = self._peek()
        if first == ord("0") and follower is not None and follower in _DIGITS:
            self._fail_next("invalid number")
        self._digits()
        if self._peek() == ord("."):
            self._index += 1
            if not self._digits():
                missing = self._peek() is None
                self._fail_next("EOF while parsing a value" if missing else "invalid number")
        if self._peek() in (ord("e"), ord("E")):
            self._exponent(start)
        if isinf(float(self._data[start : self._index])):
            self._fail("number out of range")

    def _exponent(self, start: int) -> None:
        significand = self._data[start : self._index]
        self._index += 1
        negative = self._peek() == ord("-")
        if self._peek() in (ord("+"), ord("-")):
            self._index += 1
        digit = self._take()
        if digit is None:
            self._fail("EOF while parsing a value")
        if digit not in _DIGITS:
            self._fail("invalid number")
        exponent = digit - ord("0")
        while (byte := self._peek()) is not None and byte in _DIGITS:
            self._index += 1
            exponent = exponent * 10 + byte - ord("0")
            # The reference keeps exponents in 32 bits and gives up where they overflow.
            if exponent > 0x7FFFFFFF:
                if not negative and float(significand) != 0:
                    self._fail("number out of range")
                self._digits()

    def _string(self) -> None:
        start = self._index
        while True:
            byte = self._take()
            if byte is None:
                self._fail("EOF while parsing a string")
            if byte == ord('"'):
                break
            if byte == ord("\\"):
                self._escape()
            elif byte < 0x20:
                self._fail("control character (\\u0000-\\u001F) found while parsing a string")
        try:
            self._data[start : self._index].decode()
        except UnicodeDecodeError:
            self._fail("invalid unicode code point")

    def _escape(self) -> None:
        byte = self._take()
        if byte is None:
            self._fail("EOF while parsing a string")
        if byte != ord("u"):
            if byte not in _ESCAPES:
                self._fail("invalid escape")
            return
        first = self._hex()
        if 0xDC00 <= first <= 0xDFFF:
            self._fail("lone leading surrogate in hex escape")
        if 0xD800 <= first <= 0xDBFF:
            for expected in b"\\u":
                byte = self._take()
                if byte is None:
                    self._fail("EOF while parsing a string")
                if byte != expected:
                    self._fail("unexpected end of hex escape")
            if not 0xDC00 <= self._hex() <= 0xDFFF:
                self._fail("lone leading surrogate in hex escape")

    def _hex(self) -> int:
        digits = self._data[self._index : self._index + 4]
        self._index += len(digits)
        if len(digits) < 4:
            self._fail("EOF while parsing a string")
        if not re.fullmatch(rb"[0-9a-fA-F]{4}", digits):
            self._fail("invalid escape")
        return int(digits, 16)

    def _list(self) -> None:
        if self._skip_whitespace() == ord("]"):
            self._index += 1
            return
        while True:
            if self._peek() is None:
                self._fail_next("EOF while parsing a list")
            self._value()
            if not self._goes_on("]", "a list"):
                return

    def _object(self) -> None:
        byte = self._skip_whitespace()
        if byte == ord("}"):
            self._index += 1
            return
        if byte is None:
            self._fail_next("EOF while parsing an object")
        while True:
            if self._peek() != ord('"'):
                self._fail_next("key must be a string")
            self._index += 1
            self._string()
            byte = self._skip_whitespace()
            if byte != ord(":"):
                self._fail_next("EOF while parsing an object" if byte is None else "expected `:`")
            self._index += 1
            self._value()
            if not self._goes_on("}", "an object"):
                return

    def _goes_on(self, end: str, container: str) -> bool:
        """Whether a comma and one more item follow; else the container is at its end."""
        byte = self._skip_whitespace()
        if byte == ord(end):
            self._index += 1
            return False
        if byte is None:
            self._fail_next(f"EOF while parsing {container}")
        if byte != ord(","):
            self._fail_next(f"expected `,` or `{end}`")
        self._index += 1
        byte = self._skip_whitespace()
        if byte is None:
            self._fail_next("EOF while parsing a value")
        if byte == ord(end):
            self._fail_next("trailing comma")
        return True
