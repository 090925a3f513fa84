"""Words and ids equal those of the library for every character and any mixture of them."""

from __future__ import annotations

import gzip
import json
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
from small_tokenizer import small_tokenizer_json
from tokenizers import Regex, pre_tokenizers

from dsinfer_jax.recipe import Tokenizer
from dsinfer_jax.recipe.pre_tokenizer import KNOWN_SPLITS, word_patterns
from dsinfer_jax.recipe.word_encoder import REMEMBERED_CHARACTERS

ROOT = Path(__file__).parents[2]
MERGES = ROOT / "tests/data/tokenizer_1024.json"
SHARED_TOKENIZER = ROOT / "../shared/recipe_cases/tokenizer_v41.json.gz"

UNASSIGNED_KANA = "\u3040\u3097\u3098"
RANGES = (range(1, 0xD800), range(0xE000, 0x10000), range(0x1F000, 0x1FB00))
KNOWN = [c for c in map(chr, chain(*RANGES)) if c not in UNASSIGNED_KANA]
PIECES = (
    *("word", " two", "Ünï", "é", "a\u0301", "\u0301", "ไทย", "한국", "नमस्ते", "㐀", "$x", "'s"),
    *("1", "²", "Ⅷ", "12345", " ", "  ", "\t", "\n", "\r\n", "\n\n ", "\x0b", "\x85", "\xa0"),
    *("\u2028", "\u3000", ".", "=>", "//", "。", "，", "“", "…", "€", "🙂", "👩\u200d🔬", "[", "^"),
    *("]", "-", "~", "今天", "天", "ひらがな", "カタカナー", "・", "゛", "\u3099", "\u200b"),
    *("\x01", "\x7f", "\xad", "\ufeff", "\ue000", "\uffff"),
)
AROUND = (
    *(("", "\x02"), ("a", "b"), (" ", " "), ("\n", "c "), ("1", "22"), ("天", "天")),
    *((".", "d\n"), ("  ", "\t")),
)
OTHERS = ("\0", "\ud800", "𐀀", "𝒳", "𠀀", "🬀", "\U000e0001", "\U0010ffff", *UNASSIGNED_KANA)


class Library:
    """The three splits of the published files as the library does them."""

    def __init__(self) -> None:
        steps = [pre_tokenizers.Split(Regex(split), "isolated") for split in KNOWN_SPLITS]
        self._steps = pre_tokenizers.Sequence(steps)

    def words(self, text: str) -> list[str]:
        return [word for word, _ in self._steps.pre_tokenize_str(text)]


@pytest.mark.parametrize(("before", "after"), AROUND)
def test_words_around_every_known_character(before: str, after: str) -> None:
    text = "".join(before + character + after for character in KNOWN)
    assert word_patterns().known.fullmatch(text)
    assert word_patterns().word.findall(text) == Library().words(text)


def test_words_of_mixtures() -> None:
    library = Library()
    patterns = word_patterns()
    random = Random(1)
    for _ in range(5_000):
        text = "".join(random.choices(PIECES, k=random.randint(1, 25)))
        assert patterns.known.fullmatch(text)
        assert patterns.word.findall(text) == library.words(text)
    for _ in range(1_000):
        text = "".join(random.choices(KNOWN, k=50))
        assert patterns.word.findall(text) == library.words(text)


@pytest.mark.parametrize("character", OTHERS)
def test_other_characters_are_not_known(character: str) -> None:
    assert not word_patterns().known.fullmatch(f"some {character} words")


def small_with_merges() -> str:
    """The splits of the published files and a vocabulary of 1024 words."""
    description = json.loads(small_tokenizer_json())
    description["model"] = json.loads(MERGES.read_text(encoding="utf-8"))["model"]
    description["added_tokens"] = []
    return json.dumps(description)


@pytest.mark.parametrize("name", ["small", "published"])
def test_ids_of_mixtures(name: str) -> None:
    if name == "small":
        text = small_with_merges()
    elif SHARED_TOKENIZER.is_file():
        text = gzip.decompress(SHARED_TOKENIZER.read_bytes()).decode()
    else:
        pytest.skip("needs the tokenizer in ../shared")
    tokenizer = Tokenizer.from_str(text)
    assert tokenizer._plain._words is not None
    random = Random(2)
    pieces = [*PIECES, *PIECES, "𠀀", "\0", "\u3040"]
    for _ in range(500):
        stretches = ["".join(random.choices(pieces, k=random.randint(0, 40))) for _ in range(4)]
        assert ids(tokenizer, stretches) == ids_of_library(tokenizer, stretches)


def test_ids_of_a_long_text_with_unknown_characters_here_and_there() -> None:
    tokenizer = Tokenizer.from_str(small_with_merges())
    random = Random(3)
    text = "".join(random.choices(PIECES, k=60_000))
    for place in (10, len(text) // 2, len(text) - 10):
        text = f"{text[:place]} 𠀀 {text[place:]}"
    assert ids(tokenizer, [text, "a", text]) == ids_of_library(tokenizer, [text, "a", text])


@pytest.mark.parametrize("change", ["pre_tokenizer", "vocabulary"])
def test_other_tokenizers_are_left_to_the_library(change: str) -> None:
    description = json.loads(small_tokenizer_json())
    if change == "pre_tokenizer":
        description["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{N}{1,2}"
    else:
        del description["model"]["vocab"]["\u0100"]
    tokenizer = Tokenizer.from_str(json.dumps(description))
    words = tokenizer._plain._words
    assert words is None or not words.can_encode("12345")
    stretches = ["12345 words", ""]
    assert ids(tokenizer, stretches) == ids_of_library(tokenizer, stretches)


def test_remembered_words_stay_bounded() -> None:
    tokenizer = Tokenizer.from_str(small_tokenizer_json())
    words = tokenizer._plain._words
    assert words is not None
    for number in range(100):
        first = number * REMEMBERED_CHARACTERS
        text = " ".join(f"{word:x}" for word in range(first, first + 1_500))
        assert ids(tokenizer, [text]) == ids_of_library(tokenizer, [text])
        assert sum(map(len, words._known)) == words._known_characters <= REMEMBERED_CHARACTERS


def ids(tokenizer: Tokenizer, stretches: list[str]) -> list[list[int]]:
    return [list(some) for some in tokenizer.encode_plain(stretches)]


def ids_of_library(tokenizer: Tokenizer, stretches: list[str]) -> list[list[int]]:
    library: Any = tokenizer._plain._library
    return [library.encode(stretch, add_special_tokens=False).ids for stretch in stretches]
