"""Message content made of text and images (recipe.md 2.11)."""

from __future__ import annotations

from collections.abc import Sequence

from dsinfer_jax.recipe.conversation import Span
from dsinfer_jax.recipe.image_sources import ImageSource

Part = str | ImageSource
Content = tuple[str, Sequence[ImageSource], Sequence[Span]]


def join_parts(parts: Sequence[Part], placeholder: str) -> Content:
    """Parts joined with empty lines, images as ``placeholder``; the images; where they stand."""
    texts: list[str] = []
    images: list[ImageSource] = []
    spans: list[Span] = []
    start = 0
    for part in parts:
        if isinstance(part, str):
            text = part
        else:
            text = placeholder
            images.append(part)
            spans.append((start, start + len(text)))
        texts.append(text)
        start += len(text) + 2
    return "\n\n".join(texts), images, spans
