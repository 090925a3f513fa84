"""Images that a request names: checked, but not fetched (recipe.md 2.11 to 2.13)."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.data_urls import is_unpadded_base64, read_data_url
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


def image_at(url: str, detail: ImageDetail, path: str) -> ImageSource:
    """The image of a chat or Responses URL; ``path`` begins the message of a fault."""
    if url[:4].lower() == "http":
        return UrlImageSource._make(url, detail, path)
    read = read_data_url(url) if "base64," in url else None
    if read is None:
        raise _fault(path, "Unsupported image_url format")
    if read.media_type not in IMAGE_MEDIA_TYPES:
        raise _unsupported("image", path)
    if read.data is None:
        raise _fault(path, "Invalid base64 data")
    return DataUrlImageSource._make(url, detail, path)


def file_url(block: dict[str, Any], path: str) -> str:
    """The data URL of the image in a chat ``file`` block."""
    file_id, file_data = block.get("file_id"), block.get("file_data")
    if file_id is None and file_data is None:
        raise _fault(path, "file must have a file_id or file_data")
    if file_id is not None and file_data is not None:
        raise _fault(path, "file cannot have both file_id and file_data")
    if file_data is None:
        raise _fault(path, FILE_ID_UNSUPPORTED)
    read = read_data_url(file_data)
    if read is None:
        raise _fault(path, "file_data is not a valid base64 data url")
    if read.media_type not in IMAGE_MEDIA_TYPES:
        raise _unsupported("file", path)
    if read.data is None:
        raise _fault(path, "file_data is not a valid base64 data url")
    return file_data


def input_url(block: dict[str, Any], path: str) -> str:
    """The URL of a Responses ``input_image`` block."""
    image_url, file_id = block.get("image_url") or None, block.get("file_id")
    if image_url is None and file_id is None:
        raise _fault(path, "input_image must have image_url or file_id")
    if image_url is not None and file_id is not None:
        raise _fault(path, "input_image cannot have both image_url and file_id")
    if image_url is None:
        raise _fault(path, FILE_ID_UNSUPPORTED)
    return image_url


def image_of_source(source: dict[str, str], path: str, block_path: str) -> ImageSource:
    """The image of a Messages ``image`` block; faults name ``block_path``."""
    kind = source["type"]
    if kind == "file":
        raise _fault(block_path, FILE_ID_UNSUPPORTED)
    if kind == "url":
        url = source["url"]
        if url[:4].lower() != "http":
            raise _fault(block_path, f"invalid url: {debug_quote(url)}")
        return UrlImageSource._make(url, "high", path)
    data = source["data"]
    if not _decodes_padded(data):
        raise _fault(block_path, "base64 decode error")
    media_type = source["media_type"].replace("image/jpg", "image/jpeg")
    body = data.rstrip("=")
    padding = "=" * (-len(body) % 4)
    return DataUrlImageSource._make(f"data:{media_type};base64,{body}{padding}", "high", path)


def _decodes_padded(data: str) -> bool:
    """Messages: with padding all of it is taken off, without it the length must be full."""
    raw = data.encode()
    if not raw.endswith(b"="):
        return len(raw) % 4 == 0 and is_unpadded_base64(raw)
    return is_unpadded_base64(raw.rstrip(b"="))


def _fault(path: str, message: str) -> ConversionError:
    return conversion_error(f"{path}: {message}")


def _unsupported(what: str, path: str) -> ConversionError:
    return _fault(
        path,
        f"You have uploaded an unsupported {what}. Please make sure your {what} is valid and has "
        "one of the following formats: webp, png, jpeg, and gif.",
    )
