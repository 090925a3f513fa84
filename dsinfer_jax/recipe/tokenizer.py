"""A tokenizer file, read three ways (recipe.md 4.3, 4.4, 5.3).

* ``Tokenizer.encode``: the full vocabulary, where the spelling of a control token becomes its id.
* ``Tokenizer.encode_plain``: the words alone. No text, whatever it spells, becomes a control id.
* ``Tokenizer.added_tokens`` and ``Tokenizer.token_bytes``: what each id stands for.

This module knows nothing about conversations; ``encoding.py`` decides which text is plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsinfer_jax.recipe.plain_encoder import PlainEncoder
from dsinfer_jax.recipe.values import OutputOnly, optional_string, string


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
