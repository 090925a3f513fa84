"""Text to ids for plain prompts, and ids to text piece by piece.

Made for byte-level vocabularies, which is what the published models have: a token is a string of
bytes, and a character may be spread over several tokens.
"""

import codecs
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dsinfer_jax.checkpoint.errors import CheckpointError


class TextCodec:
    """A `tokenizer.json`, as the engine needs it.

    Raises:
        CheckpointError: the file is missing, is not a tokenizer, or is not byte-level.
    """

    def __init__(self, path: str | Path, bos_token_id: int) -> None:
        self.path = Path(path)
        self._bos = bos_token_id
        if not Path(path).is_file():
            raise CheckpointError(f"{path} is missing; text needs the model's tokenizer")
        try:
            self._full = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises the bare class
            raise CheckpointError(f"{path} is not a tokenizer file ({error})") from error
        if type(self._full.decoder).__name__ != "ByteLevel":
            raise CheckpointError(
                f"{path} has no byte-level decoder; other kinds are not supported"
            )
        self._plain = Tokenizer(self._full.model)  # the words alone: shares the model
        for step in ("normalizer", "pre_tokenizer"):
            if getattr(self._full, step) is not None:
                setattr(self._plain, step, getattr(self._full, step))

    def encode(self, text: str) -> list[int]:
        """BOS and the ids of plain text. No text, whatever it spells, becomes a control token."""
        return [self._bos, *self._plain.encode(text, add_special_tokens=False).ids]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; a control token gives its spelling, an unknown id nothing."""
        return self._bytes.get(token, b"")

    @property
    def control_tokens(self) -> dict[str, int]:
        """Spellings and ids of the tokens that no text gives."""
        added: dict[int, Any] = self._full.get_added_tokens_decoder()
        return {entry.content: token for token, entry in added.items()}

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        byte_of = _byte_alphabet()
        table = {}
        for word, token in self._full.get_vocab(with_added_tokens=False).items():
            known = all(character in byte_of for character in word)
            table[token] = bytes(map(byte_of.__getitem__, word)) if known else word.encode()
        added: dict[int, Any] = self._full.get_added_tokens_decoder()
        table.update((token, entry.content.encode()) for token, entry in added.items())
        return table


class Detokeniser:
    """The text of one request as its tokens come. Holds back the start of a character.

    Bytes that are not UTF-8 become U+FFFD, one for each broken sequence.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, tokens: list[int], last: bool = False) -> str:
        """The new text; with `last`, also what was held back."""
        return self._decoder.decode(b"".join(map(self._codec.token_bytes, tokens)), final=last)


def _byte_alphabet() -> dict[str, int]:
    """Character of a byte-level vocabulary -> byte: printable bytes first, then the others."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + place): byte for place, byte in enumerate(others)},
    }
