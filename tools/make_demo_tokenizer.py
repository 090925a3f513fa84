"""Write the tokenizer of the demo model: `python tools/make_demo_tokenizer.py`.

512 entries: control tokens first (BOS 0, EOS 1, PAD 2), then the 256 bytes, then merges learned
from the repository's own English (LICENSE). The pre-tokenizer is that of the published files.
"""

import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dsinfer_jax.checkpoint.vocabulary import PAD_TOKEN
from dsinfer_jax.recipe.pre_tokenizer import KNOWN_SPLITS
from dsinfer_jax.recipe.special_tokens import DEFAULT_SPELLINGS

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = 512


def control_tokens() -> list[str]:
    """Spellings in the order of their ids."""
    bos, eos, *others = DEFAULT_SPELLINGS
    return [bos, eos, PAD_TOKEN, *others]


def learned_merges(count: int) -> list[tuple[str, str]]:
    """The first merges of a byte-level BPE of the licence text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(ROOT / "LICENSE").read_text(encoding="utf-8")], trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges][:count]


def byte_level() -> pre_tokenizers.PreTokenizer:
    """The three splits of the published files, then bytes."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in KNOWN_SPLITS]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, bytes_])


def demo_tokenizer() -> Tokenizer:
    """The whole tokenizer, with ids as the module's docstring says."""
    controls = control_tokens()
    merges = learned_merges(ENTRIES - len(controls) - 256)
    words = controls + sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [left + right for left, right in merges]
    vocab = {word: number for number, word in enumerate(words)}
    assert len(vocab) == ENTRIES
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = byte_level()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in controls])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "dsinfer_jax" / "demo" / "tokenizer.json"
    parser.add_argument("output", type=Path, nargs="?", default=default)
    output = parser.parse_args().output
    demo_tokenizer().save(str(output))
    print(f"wrote {output}: {ENTRIES} entries")


if __name__ == "__main__":
    main()
