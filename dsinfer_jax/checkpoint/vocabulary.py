"""The folded vocabulary of the n-gram memory, computed from `tokenizer.json` (model.md 8.1).

Spellings that differ in case, accents, compatibility forms or surrounding space share one
compressed id.
"""

from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers

from dsinfer_jax.checkpoint.errors import CheckpointError
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.hashing import hash_params
from dsinfer_jax.model.params import HashParams

TOKENIZER_NAME = "tokenizer.json"
PAD_TOKEN = "<｜▁pad▁｜>"
_UNDECODABLE = "\ufffd"
_LONE_SPACE = "\ue000"  # stands in for a token that is one space while the ends are stripped


def fold_vocabulary(tokenizer_path: str | Path) -> np.ndarray:
    """Compressed id of every raw id, added tokens included: int32 `[tokens]`, in order of use.

    Raises:
        CheckpointError: the file is missing or is not a tokenizer.
    """
    return _fold(_read_tokenizer(tokenizer_path))


def load_hash_params(folder: str | Path, config: ModelConfig) -> HashParams | None:
    """The derived leaves, from `folder/tokenizer.json`; None for a model without n-gram memory.

    Raises:
        CheckpointError: no tokenizer, a pad token with another id than the configuration's (V15),
            or a folded vocabulary of another size than the configuration states. The multipliers
            depend on that size, so one different spelling would re-hash everything.
    """
    if config.engram is None:
        return None
    path = Path(folder) / TOKENIZER_NAME
    tokenizer = _read_tokenizer(path)
    pad_id = tokenizer.token_to_id(PAD_TOKEN)
    if pad_id != config.engram.pad_token_id:
        raise CheckpointError(
            f"{path} gives the token {PAD_TOKEN} the id {pad_id}; it must be "
            f"{config.engram.pad_token_id}, the pad_token_id of the configuration (V15)"
        )
    token_map = _fold(tokenizer)
    stated, found = config.engram.compressed_vocab_size, int(token_map.max()) + 1
    if stated is not None and stated != found:
        raise CheckpointError(
            f"{path} folds to {found} ids, but engram_compressed_vocab_size is {stated}; "
            "take tokenizer.json and config.json from the same checkpoint"
        )
    return hash_params(config, token_map)


def _read_tokenizer(path: str | Path) -> Tokenizer:
    if not Path(path).is_file():
        raise CheckpointError(
            f"{path} is missing; the n-gram memory needs the tokenizer's vocabulary"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises the bare class
        raise CheckpointError(f"{path} is not a tokenizer file ({error}); restore it") from error


def _fold(tokenizer: Tokenizer) -> np.ndarray:
    ids = range(tokenizer.get_vocab_size(with_added_tokens=True))
    texts = tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=False)
    normalise = _normaliser().normalize_str
    compressed: dict[str, int] = {}
    token_map = np.empty(len(ids), np.int32)
    for token, text in zip(ids, texts, strict=True):
        if _UNDECODABLE in text:
            key = tokenizer.id_to_token(token) or text
        else:
            key = normalise(text) or text
        token_map[token] = compressed.setdefault(key, len(compressed))
    return token_map


def _normaliser() -> normalizers.Normalizer:
    """N of model.md 8.1, on the library's Unicode tables: Python's differ between versions."""
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
