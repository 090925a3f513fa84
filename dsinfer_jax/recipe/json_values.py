"""JSON as Python values: checked copies, and the three ways of writing (recipe.md 2.1, 3.1).

A JSON value here is ``None``, ``bool``, ``int`` in [-2^63, 2^64), a finite ``float``, a valid
Unicode ``str``, a ``list`` or a ``dict`` with ``str`` keys, in order.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

from dsinfer_jax.recipe.values import string

MAXIMUM_DEPTH = 128

_spaced = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode
_compact = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_EXPONENT = re.compile(r"\de[+-]\d")

quote = json.encoder.encode_basestring
"""A string as JSON: quotes, backslashes and controls below U+0020 escaped, nothing else."""


def json_value(value: Any, depth: int = 0) -> Any:
    """A deep copy of ``value`` as a JSON value.

    Tuples become lists. Raises ``TypeError`` for other objects and keys, ``ValueError`` for NaN and
    infinities, ``OverflowError`` for integers beyond 64 bits and ``RecursionError`` for more than
    128 levels.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else string("value", value)
    if kind is dict or isinstance(value, dict):
        if depth >= MAXIMUM_DEPTH:
            raise _too_deep()
        copy = {}
        for key, child in value.items():
            if not isinstance(key, str):
                raise TypeError("JSON object keys must be str")
            copy[string("key", key)] = json_value(child, depth + 1)
        return copy
    if kind is list or isinstance(value, list | tuple):
        if depth >= MAXIMUM_DEPTH:
            raise _too_deep()
        return [json_value(child, depth + 1) for child in value]
    if value is None or kind is bool:
        return value
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise OverflowError("integer is outside the JSON number range")
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            text = {"nan": "NaN"}.get(repr(float(value)), repr(float(value)))
            raise ValueError(f"{text} is not a finite JSON number")
        return float(value)
    if isinstance(value, str):
        return string("value", value)
    raise TypeError(f"{kind.__name__} is not a JSON value")


def _too_deep() -> RecursionError:
    return RecursionError(f"JSON input exceeds the maximum nesting depth of {MAXIMUM_DEPTH}")


def write_spaced(value: Any) -> str:
    """JSON with ``, `` and ``: ``, floats as Python's ``repr``: the style of V4.1 prompts."""
    return _spaced(value)


def write_spaced_plain_floats(value: Any) -> str:
    """JSON with ``, `` and ``: ``, floats as ``float_text``: the style of V4 prompts."""
    text = _spaced(value)
    if ("e-" in text or "e+" in text) and _EXPONENT.search(text):
        return _write(value, ", ", ": ")
    return text


def write_compact(value: Any) -> str:
    """JSON without blanks, floats as ``float_text``."""
    text = _compact(value)
    if ("e-" in text or "e+" in text) and _EXPONENT.search(text):
        return _write(value, ",", ":")
    return text


def float_text(number: float) -> str:
    """Shortest digits, decimal for 1e-5 <= \\|x\\| < 1e16, else like ``1e-7`` and ``1e+20``."""
    text = repr(number)
    mantissa, has_exponent, exponent_text = text.partition("e")
    if not has_exponent:
        return text
    exponent = int(exponent_text)
    if exponent == -5:
        sign = "-" if number < 0 else ""
        return sign + "0.0000" + mantissa.lstrip("-").replace(".", "")
    return f"{mantissa}e{exponent:+d}"


def _write(value: Any, comma: str, colon: str) -> str:
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, list):
        return "[" + comma.join(_write(child, comma, colon) for child in value) + "]"
    if isinstance(value, dict):
        members = (quote(key) + colon + _write(child, comma, colon) for key, child in value.items())
        return "{" + comma.join(members) + "}"
    return _spaced(value)
