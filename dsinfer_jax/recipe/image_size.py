"""The size of an image as the model sees it, and its number of tokens (recipe.md 6.1).

All in double precision: results are equal to the reference's to the pixel.
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import NamedTuple

PATCH = 14
PATCHES_PER_TOKEN_SIDE = 3
TOKEN_SIDE = PATCH * PATCHES_PER_TOKEN_SIDE
MAXIMUM_TOKENS = 1024
LEAST_AREA = 544 * 544
# A token for each row end and two for the image itself do not show pixels.
EXTRA_TOKENS = 2
MAXIMUM_STEPS = 64

# Images so thin that one token side does not fit get these sizes.
THIN = (TOKEN_SIDE, TOKEN_SIDE * (MAXIMUM_TOKENS - EXTRA_TOKENS) // 2)
FLAT = (TOKEN_SIDE * (MAXIMUM_TOKENS - EXTRA_TOKENS - 1), PATCH)


class CalcResizeError(ValueError):
    """The size rule did not come to rest."""


class FittedSize(NamedTuple):
    """A size in pixels, a multiple of the patch, and the tokens it takes."""

    width: int
    height: int
    tokens: int


def fit_size(width: int, height: int, longest_side: int | None = None) -> FittedSize:
    """The size that the rule comes to rest at.

    ``longest_side`` cuts both sides after every step. Raises ``CalcResizeError``.
    """
    for _ in range(MAXIMUM_STEPS):
        fitted = _step(width, height)
        if longest_side is not None:
            fitted = FittedSize(
                min(fitted.width, longest_side), min(fitted.height, longest_side), fitted.tokens
            )
        if (fitted.width, fitted.height) == (width, height):
            return fitted
        width, height, _ = fitted
    raise CalcResizeError(f"the size {width} x {height} does not come to rest; use another image")


def _step(width: int, height: int) -> FittedSize:
    if 0 < width * height < LEAST_AREA:
        growth = sqrt(LEAST_AREA / (width * height))
        width, height = int(width * growth), int(height * growth)
    fitted = _on_patches(width, height)
    if fitted.tokens <= MAXIMUM_TOKENS:
        return fitted
    ratio = height / width
    columns = sqrt((MAXIMUM_TOKENS - EXTRA_TOKENS) / ratio + 0.25) - 0.5
    rows = columns * ratio
    if columns < 1:
        return _on_patches(*THIN)
    if rows < 1:
        return _on_patches(*FLAT)
    shrink = min(TOKEN_SIDE * floor(columns) / width, TOKEN_SIDE * floor(rows) / height)
    return _on_patches(
        floor(width * shrink / PATCH) * PATCH, floor(height * shrink / PATCH) * PATCH
    )


def _on_patches(width: int, height: int) -> FittedSize:
    """The size rounded up to whole patches."""
    across, down = ceil(width / PATCH), ceil(height / PATCH)
    columns = ceil(across / PATCHES_PER_TOKEN_SIDE)
    rows = ceil(down / PATCHES_PER_TOKEN_SIDE)
    tokens = rows * (columns + 1) + EXTRA_TOKENS
    return FittedSize(across * PATCH, down * PATCH, tokens)
