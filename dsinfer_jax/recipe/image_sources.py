"""Where the images of a conversation come from (recipe.md 1.2). Fetching is in ``images.py``."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

from dsinfer_jax.recipe.quoting import debug_quote
from dsinfer_jax.recipe.values import Value, sequence, string

ImageDetail = Literal["low", "high", "original", "auto"]
ImageSourceKind = Literal["data_url", "url", "bytes"]

DETAILS = ("low", "high", "original", "auto")


def image_detail(value: Any) -> ImageDetail:
    """``value`` if it names a detail level, else ``ValueError``."""
    detail = string("detail", value)
    if detail not in DETAILS:
        raise ValueError(
            f'invalid detail {debug_quote(detail)}; expected "low", "high", "original", or "auto"'
        )
    return cast(ImageDetail, detail)


class ImageSource(Value):
    """Base of the image sources. ``path`` is the place in the request that messages name."""

    __slots__ = ("_detail", "_path", "_value")
    _kind: ClassVar[ImageSourceKind]
    _value: Any
    _detail: ImageDetail
    _path: str

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"cannot create {cls.__name__!r} instances")

    @classmethod
    def _make(cls, value: Any, detail: Any, path: Any) -> Any:
        self = object.__new__(cls)
        self._value = value
        self._detail = image_detail(detail)
        self._path = string("path", path)
        return self

    @property
    def kind(self) -> ImageSourceKind:
        return self._kind

    @property
    def detail(self) -> ImageDetail:
        return self._detail

    @property
    def data_url(self) -> str | None:
        return self._value if self._kind == "data_url" else None

    @property
    def url(self) -> str | None:
        return self._value if self._kind == "url" else None

    @property
    def data(self) -> bytes | None:
        return self._value if self._kind == "bytes" else None

    @property
    def path(self) -> str:
        return self._path

    def __repr__(self) -> str:
        value = self._value
        shown = f"<{len(value)} bytes>" if self._kind == "bytes" else debug_quote(value)
        name = type(self).__name__
        return f'{name}({shown}, detail="{self._detail}", path={debug_quote(self._path)})'


class DataUrlImageSource(ImageSource):
    """An image in a data URL, base64 or percent-encoded."""

    __slots__ = ()
    _kind = "data_url"

    def __new__(
        cls, data_url: str, detail: ImageDetail = "high", *, path: str = ""
    ) -> DataUrlImageSource:
        return cls._make(string("data_url", data_url), detail, path)


class UrlImageSource(ImageSource):
    """An image at an address."""

    __slots__ = ()
    _kind = "url"

    def __new__(cls, url: str, detail: ImageDetail = "high", *, path: str = "") -> UrlImageSource:
        return cls._make(string("url", url), detail, path)


class BytesImageSource(ImageSource):
    """An image as the bytes of its file."""

    __slots__ = ()
    _kind = "bytes"

    def __new__(
        cls, data: bytes, detail: ImageDetail = "high", *, path: str = ""
    ) -> BytesImageSource:
        if not isinstance(data, bytes | bytearray | memoryview):
            data = bytes(sequence("data", data))
        return cls._make(bytes(data), detail, path)
