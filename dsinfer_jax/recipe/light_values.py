"""The bases of objects that are made or changed by the million: chunks, events, processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

Made = TypeVar("Made")


class LightValue:
    """Like `values.Value`, but attribute stores inside the package are cheap.

    `Value.__delattr__` makes every store of a subclass go through a slow slot, about 100 ns each;
    here properties without setters and deleters make the object read-only by themselves.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")


class _Sealed(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"cannot create {cls.__name__!r} instances")


class LightOutput(LightValue, metaclass=_Sealed):
    """A light value that only this package makes, with `maker`."""

    __slots__ = ()


def maker(kind: type[Made]) -> Callable[[], Made]:
    """A function that makes an empty `kind`; faster than `object.__new__(kind)` by a third."""
    make: Callable[[], Made] = type.__call__.__get__(kind)  # passes by the metaclass
    return make
