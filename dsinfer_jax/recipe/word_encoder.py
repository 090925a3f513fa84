"""Text to ids word by word: every distinct word goes through the library once (recipe.md 4.3).

A long prompt has many words and few distinct ones. Ids of a word do not depend on its neighbours,
because merges stay within words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from dsinfer_jax.recipe.pre_tokenizer import word_patterns

REMEMBERED_CHARACTERS = 500_000
WORDS_PER_TEXT = 512

_MARK = "\0"  # stands between words; no word holds it
_MARK_IN_VOCABULARY = "\u0100"  # how the byte-level alphabet writes it


class WordEncoder:
    """For byte-level tokenizers whose pre-tokenizer is the published one."""

    def __init__(self, tokenizer: Any) -> None:
        """Of the library's `tokenizer` only the model is used, and shared."""
        from tokenizers import Tokenizer, pre_tokenizers

        library = Tokenizer(tokenizer.model)
        at_marks = pre_tokenizers.Split(_MARK, "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.pre_tokenizer = pre_tokenizers.Sequence([at_marks, byte_level])
        self._library = library
        self._mark = library.token_to_id(_MARK_IN_VOCABULARY)
        self._patterns = word_patterns()
        self._known: dict[str, tuple[int, ...]] = {}
        self._known_characters = 0

    def can_encode(self, text: str) -> bool:
        """Whether all characters are known, and the vocabulary can mark the ends of words."""
        return self._mark is not None and self._patterns.known.fullmatch(text) is not None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; each must be one that ``can_encode``."""
        find = self._patterns.word.findall
        words = [find(text) for text in texts]
        known = self._known  # kept by this call even if another one starts anew
        self._learn([word for word in set(chain.from_iterable(words)) if word not in known], known)
        look_up = known.__getitem__
        return [list(chain.from_iterable(map(look_up, some))) for some in words]

    def forget(self) -> None:
        """Start anew, with no word known."""
        self._known = {}
        self._known_characters = 0

    def _learn(self, words: list[str], known: dict[str, tuple[int, ...]]) -> None:
        starts = range(0, len(words), WORDS_PER_TEXT)
        batches = [words[start : start + WORDS_PER_TEXT] for start in starts]
        texts = [_MARK.join([*batch, ""]) for batch in batches]
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        for batch, encoding in zip(batches, encodings):
            ids = tuple(encoding.ids)
            start = 0
            for word in batch:
                end = ids.index(self._mark, start)
                known[word] = ids[start:end]
                start = end + 1
        self._known_characters += sum(map(len, words))
        if self._known_characters > REMEMBERED_CHARACTERS:
            self.forget()
