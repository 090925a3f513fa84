"""The pre-tokenizer of the published tokenizer files: its words, found without the library.

The library cuts a text into words (recipe.md 4.3) before it merges bytes, and most of its time goes
there. The three splits of the published files are one regular expression of Python, several times
as fast. What a letter or a number is, is asked of the library itself: Unicode data of two versions
may differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

CHINESE_AND_KANA = "一-龥\u3040-ゟ゠-ヿ"
# The pre-tokenizer of the published files, as the JSON of its three splits. Only for this one are
# the words known, and where a text may be cut without changing an id.
KNOWN_SPLITS = (
    r"\p{N}{1,3}",
    f"[{CHINESE_AND_KANA}]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
# Between a letter and a blank before a letter: words end with their last letter and a blank belongs
# to the word after it. Before a Chinese character that follows none: its run is split off first.
SAFE_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=[\n。，、；：？！])(?=[一-龥])")

# All characters of one to three bytes and most emoji. Left out: the zero byte, a mark that no word
# holds; three unassigned characters among kana; planes so rare that the library is not asked.
_KNOWN_RANGES = (
    *((0x0001, 0x3040), (0x3041, 0x3097), (0x3099, 0xD800), (0xE000, 0x10000)),
    (0x1F000, 0x1FB00),
)
# The third split cuts the runs of the second again.
_RUN_LETTERS = "一-龥\u3041-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
_RUN_SIGNS = "\u309b\u309c\u30a0\u30fb"


@dataclass(frozen=True)
class WordPatterns:
    """`word` finds the words of a text, one after the other; `known` matches texts it can read."""

    word: re.Pattern[str]
    known: re.Pattern[str]


@cache
def word_patterns() -> WordPatterns:
    """``KNOWN_SPLITS`` as one pattern.

    The splits follow each other: numbers and runs of Chinese or kana are words before the third
    looks at each piece. So no class of the third holds them, and a blank before them is at the end
    of its text.
    """
    letters = _class(r"\p{L}\p{M}")
    signs = _class(r"\p{P}\p{S}")
    numbers = _class(r"\p{N}")
    blanks = _class(r"\s")
    isolated = numbers + CHINESE_AND_KANA
    ascii_signs = r"!-/:-@\[-`{-~"
    alternatives = (
        rf"[{ascii_signs}][A-Za-z]+",
        rf"[^\r\n{letters}{signs}{isolated}]?[{letters}]+",
        rf" ?[{signs}]+[\r\n]*",
        rf"[{_RUN_LETTERS}]+",
        rf"[{_RUN_SIGNS}]+",
        rf"[{numbers}]{{1,3}}",
        rf"[{blanks}]*[\r\n]+",
        rf"[{blanks}]+(?![^{blanks}{isolated}])",
        rf"[{blanks}]+",
        # What no split matches is a word up to the next match.
        rf"[^{blanks}{letters}{signs}{isolated}]+(?![{letters}])",
    )
    known = "".join(f"\\U{first:08x}-\\U{end - 1:08x}" for first, end in _KNOWN_RANGES)
    return WordPatterns(re.compile("|".join(alternatives)), re.compile(f"[{known}]*"))


def splits(tokenizer: Any) -> tuple[str, ...]:
    """The regular expressions of its pre-tokenizer, empty if it is of another kind."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    wordless = Tokenizer(BPE())  # the same steps without the words, to read them as JSON
    if tokenizer.normalizer is not None:
        wordless.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        wordless.pre_tokenizer = tokenizer.pre_tokenizer
    description = json.loads(wordless.to_str())
    *before, last = (description["pre_tokenizer"] or {}).get("pretokenizers", [{}])
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    if not byte_level.items() <= last.items():
        return ()
    if description["normalizer"] not in (None, {"type": "Sequence", "normalizers": []}):
        return ()
    if any(s["type"] != "Split" or s["behavior"] != "Isolated" or s["invert"] for s in before):
        return ()
    return tuple(split["pattern"].get("Regex", "") for split in before)


@cache
def _characters() -> str:
    """The known characters that the class of Chinese and kana does not hold."""
    known = chain.from_iterable(range(first, end) for first, end in _KNOWN_RANGES)
    return re.sub(f"[{CHINESE_AND_KANA}]+", "", "".join(map(chr, known)))


def _class(properties: str) -> str:
    """The characters that have the properties by the library, as ranges of a Python class."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    others = Split(Regex(f"[^{properties}]+"), "removed")
    stretches = others.pre_tokenize_str(_characters())
    return "".join(
        f"\\U{first:08x}-\\U{last:08x}"
        for stretch, _ in stretches
        for first, last in _ranges([ord(character) for character in stretch])
    )


def _ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    first = before = numbers[0]
    for number in numbers[1:]:
        if number != before + 1:
            yield first, before
            first = number
        before = number
    yield first, before
