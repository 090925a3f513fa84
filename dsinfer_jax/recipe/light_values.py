"""The bases of objects that are made or changed by the million: chunks, events, processors."""

from __future__ import annotations

from typing import Any, NoReturn


class LightValue:
    """Like `values.Value`, but attribute stores inside the package are cheap.

    `Value.__delattr__` makes every store of a subclass go through a slow slot, about 100 ns each;
    here properties without setters and deleters make the object read-only by themselves.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")


class LightOutput(LightValue):
    """A light value that only this package makes."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"cannot create {cls.__name__!r} instances")
