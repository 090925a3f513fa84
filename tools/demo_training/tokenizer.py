"""The tokenizer of the demo model: byte-level pairs learned from generated conversations.

Control tokens come first (BOS 0, EOS 1, PAD 2: `eos_token_id` and `pad_token_id` of the
configuration are these), then the 256 bytes, then merges. The pre-tokenizer is that of the
published files, so the protocol layer's fast path applies; digits never merge, so that sums are
read and written digit by digit.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_training.render import conversation_with_answer
from demo_training.tasks import TASKS
from demo_training.tasks.task import Draw, Split
from dsinfer_jax.checkpoint.vocabulary import PAD_TOKEN
from dsinfer_jax.recipe import DeepseekV41Encoding
from dsinfer_jax.recipe.pre_tokenizer import CHINESE_AND_KANA, KNOWN_SPLITS
from dsinfer_jax.recipe.special_tokens import DEFAULT_SPELLINGS

ENTRIES = 1280  # nearly every word of the tasks is one token; 1 024 make texts a tenth longer
PATH = Path(__file__).with_name("tokenizer.json")
_ITEMS_PER_TASK = 400
# Where merges must not reach although words of the published pre-tokenizer do: whole phrases of
# Chinese are words there, and numbers have up to three digits.
_APART = (r"\p{N}", f"[{CHINESE_AND_KANA}]")


def control_tokens() -> list[str]:
    """Spellings in the order of their ids."""
    bos, eos, *others = DEFAULT_SPELLINGS
    return [bos, eos, PAD_TOKEN, *others]


def training_texts() -> Iterator[str]:
    """Plain stretches of rendered training conversations: control tokens are cut out."""
    encoding = DeepseekV41Encoding()
    for name, task in TASKS.items():
        for number in range(_ITEMS_PER_TASK):
            item = task.make(Draw.of(Random(f"tokenizer {name} {number}"), Split.TRAIN))
            prompt = encoding.render_conversation(conversation_with_answer(item))
            end = 0
            for start, after in prompt.special_ranges:
                yield prompt.prompt[end:start]
                end = after
            yield prompt.prompt[end:]


def byte_level(*before: str) -> pre_tokenizers.PreTokenizer:
    """The splits of `before`, the three of the published files, then bytes."""
    patterns = (*before, *KNOWN_SPLITS)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, bytes_])


def learned_merges(texts: Iterator[str], count: int) -> list[tuple[str, str]]:
    """The first merges of `texts`; digits and Chinese characters stay apart."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level(*_APART)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return [(left, right) for left, right in model["merges"]][:count]


def build(entries: int = ENTRIES) -> Tokenizer:
    """The whole tokenizer.

    Raises:
        ValueError: the texts do not give as many merges as `entries` needs.
    """
    controls = control_tokens()
    merges = learned_merges(training_texts(), entries - len(controls) - 256)
    words = controls + sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [left + right for left, right in merges]
    vocab = {word: number for number, word in enumerate(words)}
    if len(vocab) != entries:
        raise ValueError(f"entries is {entries}, but the texts give {len(vocab)}; ask for fewer")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = byte_level()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in controls])
    return tokenizer
