"""The error of an image that cannot be had or read (recipe.md 6.3)."""

from __future__ import annotations

from typing import NamedTuple


class ImageError(Exception):
    """An image or its address was refused, or could not be had.

    Attributes of a raised error: ``kind`` names the fault, ``is_retryable`` says whether trying
    again may help.
    """

    kind: str
    is_retryable: bool


class ImagePlace(NamedTuple):
    """Where an image stands: the path in the request and its number among those of the path."""

    path: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.path}.image[{self.number}]" if self.path else f"image[{self.number}]"


def image_error(message: str, kind: str, is_retryable: bool = False) -> ImageError:
    """An error with its attributes."""
    error = ImageError(message)
    error.kind = kind
    error.is_retryable = is_retryable
    return error


def bad_image(kind: str, place: ImagePlace) -> ImageError:
    """The file is not an image that can be used."""
    return image_error(
        f"{place}: You have uploaded an unsupported image. Please make sure your image is valid "
        "and has one of the following formats: webp, png, jpeg, and gif.",
        kind,
    )


def failed_download(kind: str, url: str, place: ImagePlace, is_retryable: bool) -> ImageError:
    """The file could not be had."""
    return image_error(f"{place}: Failed to download image from {url}", kind, is_retryable)


def too_large(limit: int, place: ImagePlace) -> ImageError:
    """The file has more than ``limit`` bytes."""
    return image_error(f"{place}: image file size exceeds limit {limit >> 20} MB", "ImageTooLarge")
