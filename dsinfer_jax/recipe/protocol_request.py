"""What the requests of all dialects share: read once, convert once (recipe.md 1.1)."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from dsinfer_jax.recipe.reading import Record
from dsinfer_jax.recipe.request_body import read_request
from dsinfer_jax.recipe.values import Value

RequestBody = bytes | str | dict[str, Any]


class ProtocolRequest(Value):
    """A checked body that ``convert`` uses up."""

    __slots__ = ("_body",)
    _shape: ClassVar[Record]
    _body: dict[str, Any] | None

    @classmethod
    def _read(cls, body: Any) -> Self:
        self = object.__new__(cls)
        self._body = read_request(body, cls._shape)
        return self

    def _peek(self) -> dict[str, Any]:
        if self._body is None:
            raise RuntimeError("protocol request has been consumed")
        return self._body

    def _take(self) -> dict[str, Any]:
        body = self._peek()
        self._body = None
        return body

    @property
    def model(self) -> str:
        """The requested model name; read it before ``convert``."""
        return self._peek()["model"]
