"""A byte-level tokenizer without merges: every byte is a word, every control token has its id."""

from __future__ import annotations

import json

from dsinfer_jax.recipe.pre_tokenizer import KNOWN_SPLITS
from dsinfer_jax.recipe.special_tokens import DEFAULT_SPELLINGS

FIRST_CONTROL_ID = 256


def small_tokenizer_json() -> str:
    """The contents of a ``tokenizer.json``; ids from 256 are control tokens."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = [chr(byte) for byte in printable]
    alphabet += [chr(0x100 + position) for position in range(len(others))]
    splits = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in KNOWN_SPLITS
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    added = [
        {
            "id": FIRST_CONTROL_ID + position,
            "content": spelling,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for position, spelling in enumerate(DEFAULT_SPELLINGS)
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "vocab": {word: number for number, word in enumerate(alphabet)},
                "merges": [],
            },
        }
    )
