"""Making an image the size that the model sees (recipe.md 6.2). Needs the ``vision`` extra."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from dsinfer_jax.recipe.image_errors import ImagePlace, bad_image
from dsinfer_jax.recipe.image_size import fit_size
from dsinfer_jax.recipe.image_sources import ImageDetail, image_detail
from dsinfer_jax.recipe.values import Value, instance, sequence, unsigned

WEBP_MAXIMUM_SIDE = 16_380
WEBP_QUALITY = 90
ALPHA_BACKGROUND = 253
PADDING_GREY = 127
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


class PreprocessOptions(Value):
    """Limits of one preprocessing step, in pixels of the longer side."""

    __slots__ = ("_detail", "_low_detail_max_dimension_px", "_max_dimension_px")
    _detail: ImageDetail
    _max_dimension_px: int
    _low_detail_max_dimension_px: int

    def __new__(
        cls, detail: ImageDetail, max_dimension_px: int, low_detail_max_dimension_px: int
    ) -> PreprocessOptions:
        self = object.__new__(cls)
        self._detail = image_detail(detail)
        self._max_dimension_px = unsigned("max_dimension_px", max_dimension_px, 32)
        self._low_detail_max_dimension_px = unsigned(
            "low_detail_max_dimension_px", low_detail_max_dimension_px, 32
        )
        return self

    @property
    def detail(self) -> ImageDetail:
        return self._detail

    @property
    def max_dimension_px(self) -> int:
        """A longer side is refused."""
        return self._max_dimension_px

    @property
    def low_detail_max_dimension_px(self) -> int:
        """With detail ``low`` a longer side is shrunk to this first."""
        return self._low_detail_max_dimension_px


class ImageInfo(Value):
    """A preprocessed image: the bytes of a file and its size in pixels."""

    __slots__ = ("_data", "_height", "_width")
    _data: bytes
    _width: int
    _height: int

    def __new__(cls, data: bytes, width: int, height: int) -> ImageInfo:
        self = object.__new__(cls)
        if not isinstance(data, bytes | bytearray | memoryview):
            data = bytes(sequence("data", data))
        self._data = bytes(data)
        self._width = unsigned("width", width, 32)
        self._height = unsigned("height", height, 32)
        return self

    @property
    def data(self) -> bytes:
        return self._data

    @property
    def width(self) -> int:
        return self._width

    @property
    def height(self) -> int:
        return self._height


class OpenCvImagePreprocessor(Value):
    """Decodes, scales and pads; the name is the official one, the work is done by Pillow.

    Sizes and errors are those of the official package, single bytes of the WebP file are not.
    """

    __slots__ = ()

    def __new__(cls) -> OpenCvImagePreprocessor:
        return object.__new__(cls)

    def preprocess(self, data: bytes, options: PreprocessOptions) -> ImageInfo:
        """The image as the model sees it; ``ImageError`` for what is no usable image."""
        if not isinstance(data, bytes | bytearray | memoryview):
            data = bytes(sequence("data", data))
        return preprocess_at(
            bytes(data), instance("options", options, PreprocessOptions), ImagePlace()
        )


def preprocess_at(data: bytes, options: PreprocessOptions, place: ImagePlace) -> ImageInfo:
    """The image as the model sees it, errors named after ``place``."""
    try:
        from PIL import Image
    except ImportError:
        raise RuntimeError(
            "Images need Pillow, which is not installed: pip install 'dsinfer-jax[vision]'."
        ) from None

    picture = _decode(data, options, place)
    if options._detail == "low":
        picture = _shrink(picture, options._low_detail_max_dimension_px)
    target = fit_size(picture.width, picture.height, WEBP_MAXIMUM_SIDE)
    scale = min(target.width / picture.width, target.height / picture.height)
    inner = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    scaled = picture.resize(inner, Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", (target.width, target.height), (PADDING_GREY,) * 3)
    offset = (round((target.width - inner[0]) / 2), round((target.height - inner[1]) / 2))
    canvas.paste(scaled, offset)
    file = BytesIO()
    canvas.save(file, "WEBP", quality=WEBP_QUALITY)
    return ImageInfo(file.getvalue(), target.width, target.height)


def _decode(data: bytes, options: PreprocessOptions, place: ImagePlace) -> Any:
    from PIL import Image

    if not data:
        raise bad_image("EmptyImage", place)
    if not _is_accepted(data):
        raise bad_image("UnsupportedMediaType", place)
    try:
        picture = Image.open(BytesIO(data), formats=_FORMATS)
    except Exception:  # each decoder raises what it likes
        raise bad_image("Decode", place) from None
    if max(picture.size) > options._max_dimension_px:
        raise bad_image("ImageDimensionsTooLarge", place)
    if picture.format == "PNG" and b"IEND" not in data[-12:]:  # Pillow reads it, OpenCV does not
        raise bad_image("EmptyImage", place)
    try:
        picture.load()
        return _over_grey(picture)
    except Exception:
        raise bad_image("EmptyImage", place) from None


def _is_accepted(data: bytes) -> bool:
    """Whether the first bytes are those of a PNG, JPEG, GIF or WebP."""
    return data.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF")) or (
        data.startswith(b"RIFF") and data[8:12] == b"WEBP"
    )


def _over_grey(picture: Any) -> Any:
    """RGB, transparent parts over light grey."""
    from PIL import Image

    if "A" not in picture.getbands() and "transparency" not in picture.info:
        return picture.convert("RGB")
    layered = picture.convert("RGBA")
    background = Image.new("RGBA", layered.size, (ALPHA_BACKGROUND,) * 3 + (255,))
    return Image.alpha_composite(background, layered).convert("RGB")


def _shrink(picture: Any, longest_side: int) -> Any:
    from PIL import Image

    longer = max(picture.size)
    if longer <= longest_side:
        return picture
    sides = (max(1, int(side * longest_side / longer + 0.5)) for side in picture.size)
    return picture.resize(tuple(sides), Image.Resampling.BOX)
