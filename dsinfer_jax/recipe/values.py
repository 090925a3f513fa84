"""What every object of the protocol layer has in common (recipe.md 1.1).

Read-only value objects, enumerations, argument checks and the error of a request that cannot be
converted. This module knows nothing about conversations, prompts or streams.

A value class is written like this::

    class Point(Value):
        __slots__ = ("_x",)

        def __new__(cls, x: int) -> Point:
            self = object.__new__(cls)
            self._x = unsigned("x", x, 32)
            return self

        @property
        def x(self) -> int:
            return self._x

Slots and properties without setters make it read-only at no cost; equality is identity because
nothing defines ``__eq__``. Code of this package that has already checked its values may read and
fill the slots directly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, NoReturn, TypeVar

Item = TypeVar("Item")


class Value:
    """Base of the read-only objects: identity equality, no copies, no pickles."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")


class _Sealed(type):
    """Classes that only this package makes, but for those that define ``__new__`` themselves."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "__new__" not in vars(cls):
            raise TypeError(f"cannot create {cls.__name__!r} instances")
        return super().__call__(*args, **kwargs)


class OutputOnly(Value, metaclass=_Sealed):
    """A value object that only this package makes; calling the class raises ``TypeError``."""

    __slots__ = ()


def maker(kind: type[Item]) -> Callable[[], Item]:
    """A function that makes an empty `kind`; faster than ``object.__new__(kind)`` by a third."""
    make: Callable[[], Item] = type.__call__.__get__(kind)  # passes by the metaclass
    return make


class Enumeration(OutputOnly):
    """A closed set of single objects, written as annotated class variables.

    ``int(member)`` is its position; ``str`` and ``repr`` are ``Type.Member``. A member equals only
    itself and has no order.
    """

    __slots__ = ("_name", "_position")
    _name: str
    _position: int

    def __init_subclass__(cls) -> None:
        for position, name in enumerate(cls.__annotations__):
            member = object.__new__(cls)
            member._name = name
            member._position = position
            setattr(cls, name, member)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self._name}"

    def __int__(self) -> int:
        return self._position


class ConversionError(Exception):
    """A request that was read but cannot be served (recipe.md 1.3).

    Attributes of a raised error: ``status_code`` (HTTP status, 400) and ``body`` (the JSON to
    answer with). ``str(error)`` is the message.
    """

    status_code: int
    body: str


def conversion_error(message: str) -> ConversionError:
    """The error of status 400 with ``message`` as text and in the body, in every dialect."""
    error = ConversionError(message)
    error.status_code = 400
    error.body = (
        '{"error":{"message":'
        + json.dumps(message, ensure_ascii=False)
        + ',"type":"invalid_request_error","param":null,"code":"invalid_request_error"}}'
    )
    return error


def wrong_type(name: str, value: object, expected: str) -> TypeError:
    """The error for an argument ``name`` whose value is not an ``expected``."""
    given = type(value).__name__
    return TypeError(f"argument '{name}': '{given}' object cannot be cast as '{expected}'")


def string(name: str, value: Any) -> str:
    """``value`` as a plain ``str`` of valid Unicode; ``TypeError`` or ``UnicodeEncodeError``."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise wrong_type(name, value, "str")
        value = str.__str__(value)
    if not value.isascii():
        value.encode()
    return value


def optional_string(name: str, value: Any) -> str | None:
    """``None`` or the checked string."""
    return None if value is None else string(name, value)


def boolean(name: str, value: Any) -> bool:
    """``value`` if it is a ``bool``; integers are not accepted."""
    if value is True or value is False:
        return value
    raise wrong_type(name, value, "bool")


def optional_boolean(name: str, value: Any) -> bool | None:
    """``None`` or the checked bool."""
    return None if value is None else boolean(name, value)


def unsigned(name: str, value: Any, bits: int) -> int:
    """``value`` as an int in [0, 2^bits); ``TypeError`` or ``OverflowError`` otherwise."""
    if type(value) is not int:
        try:
            value = index(value)
        except TypeError:
            given = type(value).__name__
            raise TypeError(
                f"argument '{name}': '{given}' object cannot be interpreted as an integer"
            ) from None
    if 0 <= value < 1 << bits:
        return value
    if bits == 64:
        raise OverflowError(
            "can't convert negative int to unsigned" if value < 0 else "int too big to convert"
        )
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError("Python int too large to convert to C long")
    raise OverflowError("out of range integral type conversion attempted")


def instance(name: str, value: Any, kind: type[Item]) -> Item:
    """``value`` if it is a ``kind``."""
    if isinstance(value, kind):
        return value
    raise wrong_type(name, value, kind.__name__)


def instances(name: str, value: Any, kind: type[Item]) -> list[Item]:
    """A new list of the items of a sequence, each of which must be a ``kind``."""
    items = sequence(name, value)
    for item in items:
        if not isinstance(item, kind):
            raise wrong_type(name, item, kind.__name__)
    return items


def sequence(name: str, value: Any) -> list[Any]:
    """A new list of the items of ``value``; strings and things that are no sequence are refused."""
    if isinstance(value, str):
        raise TypeError(f"argument '{name}': Can't extract `str` to `Vec`")
    if not isinstance(value, Sequence):
        raise wrong_type(name, value, "Sequence")
    return list(value)
