"""Plain text to ids, without the added vocabulary, remembered by stretch (recipe.md 4.3, 4.4)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from threading import Lock
from typing import Any

from dsinfer_jax.recipe.pre_tokenizer import KNOWN_SPLITS, SAFE_CUT, splits
from dsinfer_jax.recipe.word_encoder import WordEncoder

PART_CHARACTERS = 4_096
CACHE_CHARACTERS = 8_000_000


class PlainEncoder:
    """The tokenizer without its added vocabulary: pre-tokenizer and merges only."""

    def __init__(self, full: Any) -> None:
        from tokenizers import Tokenizer as Library

        library = Library(full.model)  # shares the model with the full tokenizer
        if full.normalizer is not None:
            library.normalizer = full.normalizer
        if full.pre_tokenizer is not None:
            library.pre_tokenizer = full.pre_tokenizer
        self._library = library
        self._words = WordEncoder(full) if splits(full) == KNOWN_SPLITS else None
        self._cache: dict[str, array[int]] = {}
        self._cache_characters = 0
        self._lock = Lock()

    def encode(self, stretches: Sequence[str]) -> list[Sequence[int]]:
        """Ids of each stretch."""
        cache = self._cache
        found: list[Sequence[int] | None] = [cache.get(stretch) for stretch in stretches]
        missing = {stretch for stretch, ids in zip(stretches, found) if ids is None and stretch}
        encoded = self._encode_new(list(missing)) if missing else {}
        self._remember(stretches, encoded)
        return [
            ids if ids is not None else encoded.get(stretch, ())
            for stretch, ids in zip(stretches, found)
        ]

    def encode_with_offsets(self, text: str) -> list[tuple[int, int, int]]:
        """Ids and where their characters stand."""
        encoding = self._library.encode(text, add_special_tokens=False)
        return [(id, *span) for id, span in zip(encoding.ids, encoding.offsets)]

    def forget(self) -> None:
        """Empty the cache of stretches and that of words."""
        with self._lock:
            self._cache.clear()
            self._cache_characters = 0
        if self._words is not None:
            self._words.forget()

    def _encode_new(self, stretches: list[str]) -> dict[str, list[int]]:
        if self._words is None:
            return dict(zip(stretches, self._encode_by_library(stretches)))
        cut = [_parts(stretch) for stretch in stretches]
        parts = list(dict.fromkeys(chain.from_iterable(cut)))
        readable = [part for part in parts if self._words.can_encode(part)]
        ids = dict(zip(readable, self._words.encode(readable)))
        others = [part for part in parts if part not in ids]
        ids.update(zip(others, self._encode_by_library(others)))
        return {
            stretch: list(chain.from_iterable(map(ids.__getitem__, some)))
            for stretch, some in zip(stretches, cut)
        }

    def _encode_by_library(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, in parallel."""
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _remember(self, stretches: Sequence[str], encoded: dict[str, list[int]]) -> None:
        """Move what was used to the young end of the cache, add what is new, drop the oldest."""
        with self._lock:
            cache = self._cache
            for stretch in stretches:
                ids = cache.pop(stretch, None)
                if ids is None:
                    if stretch not in encoded:
                        continue
                    ids = array("I", encoded[stretch])  # a quarter of the memory of a list
                    self._cache_characters += len(stretch)
                cache[stretch] = ids
            while self._cache_characters > CACHE_CHARACTERS:
                oldest = next(iter(cache))
                del cache[oldest]
                self._cache_characters -= len(oldest)


def _parts(stretch: str) -> list[str]:
    """The stretch in pieces that are encoded like the whole, by more than one core."""
    parts = []
    start = 0
    while len(stretch) - start >= 2 * PART_CHARACTERS:
        cut = SAFE_CUT.search(stretch, start + PART_CHARACTERS)
        if cut is None:
            break
        parts.append(stretch[start : cut.start()])
        start = cut.start()
    parts.append(stretch[start:])
    return parts
