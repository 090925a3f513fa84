"""A tokenizer file, read three ways (recipe.md 4.3, 4.4, 5.3).

* ``Tokenizer.encode``: the full vocabulary, where the spelling of a control token becomes its id.
* ``Tokenizer.encode_plain``: the words alone. No text, whatever it spells, becomes a control id.
* ``Tokenizer.added_tokens`` and ``Tokenizer.token_bytes``: what each id stands for.

This module knows nothing about conversations; ``encoding.py`` decides which text is plain.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from dsinfer_jax.recipe.values import OutputOnly, optional_string, string

# The pre-tokenizer of the published files, as the JSON of its three splits. Only for this one is it
# known where a stretch may be cut without changing an id.
KNOWN_SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
# Between a letter and a blank before a letter: words end with their last letter and a blank belongs
# to the word after it. Before a Chinese character that follows none: its run is split off first.
SAFE_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=[\n。，、；：？！])(?=[一-龥])")

PART_CHARACTERS = 4_096
CACHE_CHARACTERS = 8_000_000


class Tokenizer(OutputOnly):
    """A ``tokenizer.json``, made by ``from_file``, ``from_str`` or ``from_pretrained``."""

    __slots__ = ("_added_tokens", "_byte_table", "_full", "_ids_by_spelling", "_plain")
    _full: Any
    _plain: PlainEncoder
    _added_tokens: dict[int, str]
    _ids_by_spelling: dict[str, int]
    _byte_table: dict[int, bytes] | None

    @staticmethod
    def from_file(path: str) -> Tokenizer:
        """Read a file; ``RuntimeError`` with the system's or the parser's message."""
        from tokenizers import Tokenizer as Library

        path = string("path", path)
        return Tokenizer._load(lambda: Library.from_file(path))

    @staticmethod
    def from_str(text: str) -> Tokenizer:
        """Read the contents of a ``tokenizer.json``; ``RuntimeError`` with the parser's message."""
        from tokenizers import Tokenizer as Library

        text = string("text", text)
        return Tokenizer._load(lambda: Library.from_str(text))

    @staticmethod
    def from_pretrained(
        identifier: str, revision: str | None = None, token: str | None = None
    ) -> Tokenizer:
        """Download the file of a model of the Hugging Face hub; ``RuntimeError`` on failure."""
        from tokenizers import Tokenizer as Library

        identifier = string("identifier", identifier)
        chosen = optional_string("revision", revision)
        key = optional_string("token", token)
        return Tokenizer._load(
            lambda: Library.from_pretrained(identifier, revision=chosen or "main", token=key)
        )

    @staticmethod
    def _load(read: Callable[[], Any]) -> Tokenizer:
        try:
            full = read()
        except Exception as error:  # the library raises bare Exception
            raise RuntimeError(str(error)) from None
        self = object.__new__(Tokenizer)
        self._full = full
        self._plain = PlainEncoder(full)
        self._added_tokens = {
            number: token.content for number, token in full.get_added_tokens_decoder().items()
        }
        self._ids_by_spelling = {text: number for number, text in self._added_tokens.items()}
        self._byte_table = None
        return self

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` with the full vocabulary; no post-processor, so no BOS."""
        return self._full.encode(string("text", text), add_special_tokens=False).ids

    def encode_plain(self, stretches: Sequence[str]) -> list[Sequence[int]]:
        """Ids of each stretch of plain text, without the added vocabulary, in order.

        Stretches are independent of each other, are encoded in parallel and remembered in a
        bounded cache, so the next turn of a conversation encodes only what is new.
        """
        return self._plain.encode(stretches)

    def encode_plain_with_offsets(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of each token of plain text, in characters of ``text``."""
        return self._plain.encode_with_offsets(text)

    def added_token_id(self, spelling: str) -> int | None:
        """The id of a token of the added vocabulary by its spelling; base words are not found."""
        return self._ids_by_spelling.get(spelling)

    @property
    def added_tokens(self) -> dict[int, str]:
        """Spelling of every id of the added vocabulary. Not a copy: do not change it."""
        return self._added_tokens

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """The bytes of every id: base words and added tokens. Made once. Do not change it."""
        if self._byte_table is None:
            self._byte_table = _byte_table(self._full, self._added_tokens)
        return self._byte_table


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
        self._cuttable = _splits(full) == KNOWN_SPLITS
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
        """Empty the cache."""
        with self._lock:
            self._cache.clear()
            self._cache_characters = 0

    def _encode_new(self, stretches: list[str]) -> dict[str, list[int]]:
        parts: list[str] = []
        ends: list[int] = []
        for stretch in stretches:
            parts.extend(self._parts(stretch))
            ends.append(len(parts))
        if len(parts) == 1:
            encodings = [self._library.encode(parts[0], add_special_tokens=False)]
        else:
            encodings = self._library.encode_batch_fast(parts, add_special_tokens=False)
        encoded = {}
        start = 0
        for stretch, end in zip(stretches, ends):
            ids = encodings[start].ids
            for encoding in encodings[start + 1 : end]:
                ids += encoding.ids
            encoded[stretch] = ids
            start = end
        return encoded

    def _parts(self, stretch: str) -> list[str]:
        """The stretch in pieces that are encoded like the whole, for more than one core."""
        if len(stretch) < 2 * PART_CHARACTERS or not self._cuttable:
            return [stretch]
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


def _splits(full: Any) -> tuple[str, ...]:
    """The regular expressions of the pre-tokenizer, empty if it is of another kind."""
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    wordless = Library(BPE())  # the same steps without the words, to read them as JSON
    if full.normalizer is not None:
        wordless.normalizer = full.normalizer
    if full.pre_tokenizer is not None:
        wordless.pre_tokenizer = full.pre_tokenizer
    description = json.loads(wordless.to_str())
    *splits, last = (description["pre_tokenizer"] or {}).get("pretokenizers", [{}])
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    if not byte_level.items() <= last.items():
        return ()
    if description["normalizer"] not in (None, {"type": "Sequence", "normalizers": []}):
        return ()
    if any(s["type"] != "Split" or s["behavior"] != "Isolated" or s["invert"] for s in splits):
        return ()
    return tuple(split["pattern"].get("Regex", "") for split in splits)


def _byte_table(library: Any, added_tokens: dict[int, str]) -> dict[int, bytes]:
    """The byte-level alphabet undone: printable bytes stand for themselves, others from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update((chr(0x100 + position), byte) for position, byte in enumerate(others))
    table = {}
    for word, number in library.get_vocab(with_added_tokens=False).items():
        try:
            table[number] = bytes(map(alphabet.__getitem__, word))
        except KeyError:
            table[number] = word.encode()
    table.update((number, spelling.encode()) for number, spelling in added_tokens.items())
    return table
