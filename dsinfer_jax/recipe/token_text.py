"""Token ids back to text, byte by byte (recipe.md 5.3).

Control ids stay apart from ordinary ones; a character spread over several ids waits until it is
whole. Knows nothing about markers or dialects.
"""

from __future__ import annotations

import codecs
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dsinfer_jax.recipe.inference import TokenLogprob
from dsinfer_jax.recipe.json_values import float_text, quote
from dsinfer_jax.recipe.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


@dataclass(slots=True)
class TokenPiece:
    """A control token or a run of other ids, decoded.

    `count` is the number of ids, `logprobs` the entries of all of them as JSON, without brackets.
    """

    text: str
    is_control: bool
    count: int
    logprobs: str | None


class TokenTexts(dict[int, str | None]):
    """The text of each id that is text on its own; `None` for all others.

    `None` means: a control id, an unknown id, part of a character, or a genuine U+FFFD. Filled on
    demand. Joining such texts equals decoding the run.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        library = tokenizer._full
        self.is_byte_level = type(library.decoder).__name__ == "ByteLevel"
        self._fragments: dict[int, str] = {}

    def __missing__(self, token_id: int) -> str | None:
        data = self._tokenizer.token_bytes.get(token_id)
        if data is None:  # unknown ids are not remembered: their number has no bound
            return None
        text: str | None = None
        if self.is_byte_level and token_id not in self._tokenizer.added_tokens:
            text = data.decode(errors="replace")
            if not text or REPLACEMENT in text:
                text = None
        self[token_id] = text
        return text

    def decode(self, token_ids: list[int]) -> str:
        """Decode with the tokenizer's own decoder, whatever its kind."""
        return self._tokenizer._full.decode(token_ids, skip_special_tokens=False)

    def entry(self, logprob: TokenLogprob, token_id: int) -> str:
        """The JSON object of one id with its alternatives."""
        value, alternatives = logprob
        top = ",".join(f"{{{self._scored(number, score)}}}" for number, score in alternatives)
        return f'{{{self._scored(token_id, value)},"top_logprobs":[{top}]}}'

    def _scored(self, token_id: int, score: float) -> str:
        fragment = self._fragments.get(token_id)
        if fragment is None:
            fragment = _fragment(self._tokenizer.token_bytes.get(token_id, b""))
            if token_id in self._tokenizer.token_bytes:
                self._fragments[token_id] = fragment
        return fragment % single_precision(score)


def _fragment(data: bytes) -> str:
    """The members of a log probability entry, with `%s` in the place of the number."""
    try:
        token = data.decode()
    except UnicodeDecodeError:
        token = "".join(f"\\x{byte:02x}" for byte in data)
    name = quote(token).replace("%", "%%")
    return f'"token":{name},"logprob":%s,"bytes":[{",".join(map(str, data))}]'


@lru_cache(maxsize=4)
def token_texts(tokenizer: Tokenizer) -> TokenTexts:
    """The table of a tokenizer, shared by all its streams."""
    return TokenTexts(tokenizer)


def single_precision(value: float) -> str:
    """A float as JSON after rounding to 32 bits: shortest digits, null if it is not finite."""
    try:
        rounded = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return "null"
    if not math.isfinite(rounded):
        return "null"
    for digits in range(6, 10):
        number = float(f"{rounded:.{digits}g}")
        if struct.unpack("f", struct.pack("f", number))[0] == rounded:
            break
    return float_text(number)


class TokenReader:
    """The ids of one stream; a run that may end inside a character waits for the next push."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.texts = token_texts(tokenizer)
        self._control = tokenizer.added_tokens
        self._bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[str] = []

    @property
    def waiting(self) -> bool:
        """Whether ids wait for the rest of a character."""
        return bool(self._ids)

    @property
    def waiting_bytes(self) -> int:
        """The size of what waits; at the end of a stream it is lost (recipe.md 5.8)."""
        return sum(len(self._bytes.get(token_id, b"")) for token_id in self._ids)

    def whole_text(self, token_ids: list[int]) -> str | None:
        """The text of ids that each are text on their own, if nothing waits; else `None`."""
        if self._ids:
            return None
        texts = self.texts
        if len(token_ids) == 1:
            return texts[token_ids[0]]
        parts = [texts[token_id] for token_id in token_ids]
        return None if None in parts else "".join(parts)  # type: ignore[arg-type]

    def push(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None
    ) -> list[TokenPiece]:
        """The pieces that the ids complete; `RuntimeError` when the counts differ."""
        if logprobs is not None and len(logprobs) != len(token_ids):
            raise RuntimeError(
                f"invalid log probabilities: {len(logprobs)} log probabilities "
                f"for {len(token_ids)} token IDs"
            )
        pieces: list[TokenPiece] = []
        for position, token_id in enumerate(token_ids):
            entry = None if logprobs is None else self.texts.entry(logprobs[position], token_id)
            spelling = self._control.get(token_id)
            if spelling is None:
                self._add(token_id, entry)
                continue
            if self._ids:
                text = self._decoded(final=True)
                if text:
                    pieces.append(self._piece(text, is_control=False))
            # Unknown ids without text before it are counted with the control token.
            self._ids.append(token_id)
            if entry is not None:
                self._logprobs.append(entry)
            pieces.append(self._piece(spelling, is_control=True))
        if self._ids:
            text = self._decoded(final=False)
            if text is not None:
                pieces.append(self._piece(text, is_control=False))
        return pieces

    def _add(self, token_id: int, entry: str | None) -> None:
        self._ids.append(token_id)
        if entry is not None:
            self._logprobs.append(entry)
        if self.texts.is_byte_level:
            text = self._decoder.decode(self._bytes.get(token_id, b""))
            if text:
                self._text.append(text)

    def _decoded(self, *, final: bool) -> str | None:
        """The text of the run, or `None` while it is empty or may end inside a character."""
        if not self.texts.is_byte_level:
            text = self.texts.decode(self._ids)
            return text if final or (text and not text.endswith(REPLACEMENT)) else None
        if not final:
            unfinished = self._decoder.getstate()[0]
            if unfinished or not self._text or self._text[-1].endswith(REPLACEMENT):
                return None
        self._text.append(self._decoder.decode(b"", final=True))
        return "".join(self._text)

    def _piece(self, text: str, *, is_control: bool) -> TokenPiece:
        logprobs = ",".join(self._logprobs) if self._logprobs else None
        piece = TokenPiece(text, is_control, len(self._ids), logprobs)
        self._ids.clear()
        self._text.clear()
        self._logprobs.clear()
        self._decoder.reset()
        return piece
