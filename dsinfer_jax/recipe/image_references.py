"""Images that a request names: checked, but not fetched (recipe.md 2.11 to 2.13)."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Any
from urllib.parse import unquote_to_bytes

from dsinfer_jax.recipe.image_sources import (
    DataUrlImageSource,
    ImageDetail,
    ImageSource,
    UrlImageSource,
)
from dsinfer_jax.recipe.quoting import debug_quote
from dsinfer_jax.recipe.values import ConversionError, conversion_error

UNSUPPORTED_IMAGE = "[Unsupported Image]"
FILE_ID_UNSUPPORTED = "file_id is not supported. Pass the image as a base64 data url instead."
IMAGE_MEDIA_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif")
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")


def image_at(url: str, detail: ImageDetail, path: str) -> ImageSource:
    """The image of a chat or Responses URL; ``path`` begins the message of a fault."""
    if url[:4].lower() == "http":
        return UrlImageSource._make(url, detail, path)
    head, marker, data = url.partition(";base64,")
    if not (marker and head.startswith("data:")):
        raise _fault(path, "Unsupported image_url format")
    if head[5:].partition(";")[0].strip().lower() not in IMAGE_MEDIA_TYPES:
        raise _unsupported("image", path)
    if not _decodes(data):
        raise _fault(path, "Invalid base64 data")
    return DataUrlImageSource._make(url, detail, path)


def image_of_file(file_id: str | None, file_data: str | None, path: str) -> ImageSource:
    """The image of a chat ``file`` block."""
    if file_id is None and file_data is None:
        raise _fault(path, "file must have a file_id or file_data")
    if file_id is not None and file_data is not None:
        raise _fault(path, "file cannot have both file_id and file_data")
    if file_data is None:
        raise _fault(path, FILE_ID_UNSUPPORTED)
    head, marker, data = file_data.partition(";base64,")
    if not (marker and head.startswith("data:")):
        raise _fault(path, "file_data is not a valid base64 data url")
    if head[5:].partition(";")[0].strip().lower() not in IMAGE_MEDIA_TYPES:
        raise _unsupported("file", path)
    if not _decodes(data):
        raise _fault(path, "file_data is not a valid base64 data url")
    return DataUrlImageSource._make(file_data, "high", path)


def image_of_input(block: dict[str, Any], path: str, block_path: str) -> ImageSource:
    """The image of a Responses ``input_image`` block."""
    image_url, file_id = block.get("image_url"), block.get("file_id")
    if image_url is None and file_id is None:
        raise _fault(block_path, "input_image must have image_url or file_id")
    if image_url is not None and file_id is not None:
        raise _fault(block_path, "input_image cannot have both image_url and file_id")
    if image_url is None:
        raise _fault(block_path, FILE_ID_UNSUPPORTED)
    return image_at(image_url, block.get("detail") or "high", path)


def image_of_source(source: dict[str, str], path: str) -> ImageSource:
    """The image of a Messages ``image`` block."""
    kind = source["type"]
    if kind == "file":
        raise _fault(path, FILE_ID_UNSUPPORTED)
    if kind == "url":
        url = source["url"]
        if not url.startswith("http"):
            raise _fault(path, f"invalid url: {debug_quote(url)}")
        return UrlImageSource._make(url, "high", path)
    data = source["data"]
    if not _decodes_padded(data):
        raise _fault(path, "base64 decode error")
    media_type = source["media_type"].replace("image/jpg", "image/jpeg")
    body = data.rstrip("=")
    padding = "=" * (-len(body) % 4)
    return DataUrlImageSource._make(f"data:{media_type};base64,{body}{padding}", "high", path)


def _decodes(data: str) -> bool:
    """Whether the base64 of a data URL decodes: escapes and blanks allowed, padding optional."""
    body = data.partition("#")[0]
    raw = unquote_to_bytes(body).translate(None, b" \t\n\r\f")
    return is_base64(raw)


def _decodes_padded(data: str) -> bool:
    """Messages: with padding all of it is taken off, without it the length must be full."""
    raw = data.encode()
    if not raw.endswith(b"="):
        return len(raw) % 4 == 0 and is_base64(raw)
    return is_base64(raw.rstrip(b"="))


def is_base64(raw: bytes) -> bool:
    """Whether base64 decodes, with all of its padding or none."""
    body = raw.rstrip(b"=")
    padding = len(raw) - len(body)
    if _NOT_BASE64.search(body) or len(body) % 4 == 1:
        return False
    if padding and (len(raw) % 4 or padding > 2):
        return False
    # The bits that are left over must be zero.
    try:
        decoded = b64decode(body + b"=" * (-len(body) % 4), validate=True)
    except Base64Error:
        return False
    return not len(body) % 4 or _last_bits_are_zero(body, decoded)


def _last_bits_are_zero(body: bytes, decoded: bytes) -> bool:
    return b64encode(decoded).rstrip(b"=") == body


def _fault(path: str, message: str) -> ConversionError:
    return conversion_error(f"{path}: {message}")


def _unsupported(what: str, path: str) -> ConversionError:
    return _fault(
        path,
        f"You have uploaded an unsupported {what}. Please make sure your {what} is valid and has "
        "one of the following formats: webp, png, jpeg, and gif.",
    )
