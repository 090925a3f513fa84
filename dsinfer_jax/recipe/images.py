"""From image sources to preprocessed images, within limits (recipe.md 6.2, 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from dsinfer_jax.recipe.data_urls import read_data_url
from dsinfer_jax.recipe.image_errors import (
    ImageError,
    ImagePlace,
    bad_image,
    image_error,
    too_large,
)
from dsinfer_jax.recipe.image_fetch import MAXIMUM_IMAGE_BYTES, ReqwestImageFetcher
from dsinfer_jax.recipe.image_preprocess import (
    ImageInfo,
    OpenCvImagePreprocessor,
    PreprocessOptions,
    preprocess_at,
)
from dsinfer_jax.recipe.image_references import IMAGE_MEDIA_TYPES
from dsinfer_jax.recipe.image_size import CalcResizeError, fit_size
from dsinfer_jax.recipe.image_sources import ImageSource
from dsinfer_jax.recipe.quoting import debug_quote
from dsinfer_jax.recipe.values import Value, instance, instances

__all__ = [
    "CalcResizeError",
    "ImageError",
    "ImageInfo",
    "ImageQuota",
    "ImageResolver",
    "MultiModalData",
    "OpenCvImagePreprocessor",
    "PreprocessOptions",
    "ReqwestImageFetcher",
]

MAXIMUM_IMAGES = 600
MAXIMUM_TOTAL_BYTES = 64 << 20
MAXIMUM_DIMENSION = 8192
LOW_DETAIL_DIMENSION = 512


class MultiModalData(Value):
    """The images of a prompt, in prompt order."""

    __slots__ = ("_images",)
    _images: list[ImageInfo]

    def __new__(cls, images: Sequence[ImageInfo] | None = None) -> MultiModalData:
        self = object.__new__(cls)
        self._images = [] if images is None else instances("images", images, ImageInfo)
        return self

    @property
    def images(self) -> list[ImageInfo]:
        return list(self._images)

    def is_empty(self) -> bool:
        """Whether there are no images."""
        return not self._images

    def image_token_adjustment(self) -> int:
        """Tokens of all images beyond the one placeholder that each has in the prompt.

        Raises ``CalcResizeError`` when the size rule does not come to rest.
        """
        return sum(fit_size(image._width, image._height).tokens - 1 for image in self._images)


class ImageQuota(Value):
    """What the ``resolve`` calls of one request used; failed calls add nothing."""

    __slots__ = ("_bytes", "_count")
    _count: int
    _bytes: int

    def __new__(cls) -> ImageQuota:
        self = object.__new__(cls)
        self._count = self._bytes = 0
        return self

    def image_count(self) -> int:
        """Images so far."""
        return self._count

    def byte_size(self) -> int:
        """Bytes of their files so far."""
        return self._bytes


class ImageResolver(Value):
    """Fetches and preprocesses the images of a prompt."""

    __slots__ = ("_fetcher", "_preprocessor")
    _fetcher: ReqwestImageFetcher
    _preprocessor: OpenCvImagePreprocessor

    def __new__(
        cls, fetcher: ReqwestImageFetcher, preprocessor: OpenCvImagePreprocessor
    ) -> ImageResolver:
        self = object.__new__(cls)
        self._fetcher = instance("fetcher", fetcher, ReqwestImageFetcher)
        self._preprocessor = instance("preprocessor", preprocessor, OpenCvImagePreprocessor)
        return self

    def resolve(self, sources: Sequence[ImageSource], quota: ImageQuota) -> MultiModalData:
        """The images of ``sources``, which count against ``quota`` when all of them are good.

        First all files are had and checked, then all are decoded. Raises ``ImageError``.
        """
        wanted = instances("sources", sources, ImageSource)
        instance("quota", quota, ImageQuota)
        places = _places(wanted)
        files = self._files(wanted, places, quota)
        images = [
            preprocess_at(
                data,
                PreprocessOptions(source._detail, MAXIMUM_DIMENSION, LOW_DETAIL_DIMENSION),
                place,
            )
            for source, place, data in zip(wanted, places, files)
        ]
        quota._count += len(files)
        quota._bytes += sum(map(len, files))
        return MultiModalData(images)

    def _files(
        self, sources: list[ImageSource], places: list[ImagePlace], quota: ImageQuota
    ) -> list[bytes]:
        files: list[bytes] = []
        total = quota._bytes
        for source, place in zip(sources, places):
            data = self._file(source, place)
            if not data:
                raise bad_image("EmptyImage", place)
            count = quota._count + len(sources)
            if quota._count + len(files) >= MAXIMUM_IMAGES:
                raise image_error(
                    _prefixed(
                        source._path,
                        f"Too many images: max {MAXIMUM_IMAGES} images per request, got {count}",
                    ),
                    "TooManyImages",
                )
            if len(data) > MAXIMUM_IMAGE_BYTES:
                raise too_large(MAXIMUM_IMAGE_BYTES, place)
            total += len(data)
            if total > MAXIMUM_TOTAL_BYTES:
                raise image_error(
                    _prefixed(
                        source._path,
                        f"Total image size exceeds the limit: max {MAXIMUM_TOTAL_BYTES >> 20} MB "
                        f"per request, got {total >> 20} MB",
                    ),
                    "TotalSizeTooLarge",
                )
            files.append(data)
        return files

    def _file(self, source: ImageSource, place: ImagePlace) -> bytes:
        kind, value = source._kind, source._value
        if kind == "bytes":
            return value
        if kind == "data_url":
            return _data_url_bytes(value, place)
        try:
            scheme = urlsplit(value).scheme
        except ValueError:
            scheme = ""
        if scheme not in ("http", "https"):
            message = f"invalid url: {debug_quote(value)}"
            raise image_error(_prefixed(source._path, message), "InvalidUrl")
        return self._fetcher._fetch(value, place)


def _places(sources: Sequence[ImageSource]) -> list[ImagePlace]:
    """Path and number of each source; those of one path are numbered from 0."""
    counts: dict[str, int] = {}
    places = []
    for source in sources:
        number = counts.get(source._path, 0)
        counts[source._path] = number + 1
        places.append(ImagePlace(source._path, number))
    return places


def _prefixed(path: str, message: str) -> str:
    return f"{path}: {message}" if path else message


def _data_url_bytes(url: str, place: ImagePlace) -> bytes:
    if len(url.partition(",")[2]) * 3 // 4 > MAXIMUM_IMAGE_BYTES:
        raise too_large(MAXIMUM_IMAGE_BYTES, place)
    read = read_data_url(url)
    if read is None or read.data is None:
        raise bad_image("InvalidDataUrl", place)
    if read.media_type not in IMAGE_MEDIA_TYPES:
        raise bad_image("UnsupportedMediaType", place)
    return read.data
