"""The folded vocabulary (model.md 8.1): a real tokenizer file, and tokens chosen for each rule."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoint_folders import DATA, GOLDEN, Saved

from dsinfer_jax.checkpoint import CheckpointError, load_pretrained
from dsinfer_jax.checkpoint.safetensors import SafetensorsFile
from dsinfer_jax.checkpoint.vocabulary import PAD_TOKEN, TOKENIZER_NAME, fold_vocabulary

TOKENIZER = DATA / "tokenizer_1024.json"


def write_tokenizer(path: Path, tokens: list[str]) -> Path:
    """A tokenizer that decodes each id to its token as it stands."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": tokens[0]}
    path.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    return path


def test_the_map_of_a_real_tokenizer() -> None:
    expected = json.loads((DATA / "folded_1024.json").read_text())
    token_map = fold_vocabulary(TOKENIZER)
    assert token_map.dtype == np.int32
    assert token_map.tolist() == expected
    assert token_map.max() + 1 == 736


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="no shared/golden beside the checkout")
def test_the_golden_map() -> None:
    golden = SafetensorsFile(GOLDEN / "ops.safetensors").read("engram.token_map")
    assert np.array_equal(fold_vocabulary(GOLDEN / "ckpt" / TOKENIZER_NAME), golden)


SAME_KEY = {
    "case": ("Word", "wORD"),
    "accents": ("é", "E"),
    "non-spacing mark": ("a\u0301", "a"),
    "spacing mark": ("क\u093e", "क"),
    "enclosing mark": ("a\u20dd", "a"),
    "compatibility form": ("ﬁ", "fi"),
    "full width": ("\uff21", "a"),
    "space at the ends": ("  the\t", "the"),
    "runs of space": ("a \n\r b", "a b"),
    "spaces and one space": ("   ", " "),
    "line break and space": ("\n", " "),
    "capital sigma at the end": ("ΟΔΟΣ", "οδοσ"),  # letter by letter: no final form
}
OTHER_KEY = {
    "other words": ("word", "words"),
    "space and nothing visible": (" ", "\u0301"),  # the mark folds to nothing, so it keeps itself
    "two marks": ("\u0300", "\u0301"),
    "undecodable and its letter": ("\ufffda", "\ufffdA"),  # raw strings, not folded
    "final sigma": ("ς", "σ"),
}


@pytest.mark.parametrize("case", SAME_KEY)
def test_tokens_that_fold_together(tmp_path: Path, case: str) -> None:
    path = write_tokenizer(tmp_path / TOKENIZER_NAME, ["first", *SAME_KEY[case], "last"])
    assert fold_vocabulary(path).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("case", OTHER_KEY)
def test_tokens_that_stay_apart(tmp_path: Path, case: str) -> None:
    path = write_tokenizer(tmp_path / TOKENIZER_NAME, ["first", *OTHER_KEY[case], "last"])
    assert fold_vocabulary(path).tolist() == [0, 1, 2, 3]


def test_ids_beyond_the_tokenizer_are_marked(copy: Path) -> None:
    tokens = ["bos", "eos", PAD_TOKEN, *map(str, range(100))]
    write_tokenizer(copy / TOKENIZER_NAME, tokens)
    _, params = load_pretrained(copy)
    assert params.hashes is not None
    assert params.hashes.token_map.tolist() == [*range(103), *[-1] * (1024 - 103)]
    assert params.hashes.pad_id == 2


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_pretrained(folder)
    assert TOKENIZER_NAME in str(error.value)
    return str(error.value)


def test_a_pad_token_elsewhere_is_refused(copy: Path) -> None:
    write_tokenizer(copy / TOKENIZER_NAME, ["bos", "eos", "pad", PAD_TOKEN])
    assert f"{PAD_TOKEN} the id 3; it must be 2" in refusal(copy)
    write_tokenizer(copy / TOKENIZER_NAME, ["bos", "eos", "pad"])
    assert f"{PAD_TOKEN} the id None; it must be 2" in refusal(copy)


@pytest.mark.parametrize(("text", "complaint"), [(None, "is missing"), ("{", "not a tokenizer")])
def test_an_unusable_tokenizer_is_named(copy: Path, text: str | None, complaint: str) -> None:
    (copy / TOKENIZER_NAME).unlink()
    if text is not None:
        (copy / TOKENIZER_NAME).write_text(text)
    assert complaint in refusal(copy)


def test_a_vocabulary_of_another_size_is_refused(saved: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved.folder, folder)
    right = saved.config.with_overrides(engram_compressed_vocab_size=736)
    load_pretrained(folder, config=right)
    wrong = saved.config.with_overrides(engram_compressed_vocab_size=735)
    with pytest.raises(CheckpointError, match=r"folds to 736 ids, .* is 735; take"):
        load_pretrained(folder, config=wrong)
