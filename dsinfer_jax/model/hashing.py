"""Hash multipliers of the n-gram memory, and the derived leaves that carry them (model.md 8.3).

Pure integer arithmetic on a folded vocabulary. How a tokenizer is folded is not known here: see
`dsinfer_jax.checkpoint.vocabulary`.
"""

import numpy as np

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.params import HashParams

OUTSIDE = -1  # compressed id of ids beyond the tokenizer's table
_INT64_MAX = (1 << 63) - 1
_SEED_STEP = 10007  # the generator of layer l is seeded with this times l
_LIMBS = 4  # of 16 bits: a multiplier has at most 63 bits
_LIMB_BITS = 16


def multipliers(layer: int, compressed_size: int, count: int) -> np.ndarray:
    """The odd multipliers of one engram layer, int64 `[count]`.

    The bound keeps every product of a multiplier with a compressed id below 2^63.
    """
    bound = max(1, (_INT64_MAX // compressed_size) // 2)
    draws = np.random.default_rng(_SEED_STEP * layer).integers(0, bound, size=count, dtype=np.int64)
    return draws * 2 + 1


def limbs(values: np.ndarray) -> np.ndarray:
    """Split non-negative int64 values into 16-bit limbs, lowest first: uint32 `[..., 4]`."""
    shifts = np.arange(_LIMBS, dtype=np.int64) * _LIMB_BITS
    return ((values[..., None] >> shifts) & ((1 << _LIMB_BITS) - 1)).astype(np.uint32)


def hash_params(config: ModelConfig, token_map: np.ndarray) -> HashParams:
    """The derived leaves of a model with n-gram memory, as NumPy arrays.

    Args:
        config: a configuration whose `engram` is set.
        token_map: int `[tokens]`, raw id -> compressed id, numbered from 0 without gaps. Raw ids
            beyond it, up to `vocab_size`, become -1.

    Raises:
        ValueError: the configuration has no engram, or the map does not hold its pad token.
    """
    engram = config.engram
    if engram is None:
        raise ValueError("the configuration has no engram_layer_ids; it needs no hash parameters")
    if engram.pad_token_id >= len(token_map):
        raise ValueError(
            f"the token map has {len(token_map)} ids; it must hold engram_pad_token_id "
            f"{engram.pad_token_id}"
        )
    known = min(len(token_map), config.vocab_size)
    padded = np.full(config.vocab_size, OUTSIDE, np.int32)
    padded[:known] = token_map[:known]
    compressed_size = int(token_map.max()) + 1
    factors = [
        multipliers(layer, compressed_size, engram.max_ngram_size) for layer in engram.layer_ids
    ]
    return HashParams(
        token_map=padded,  # type: ignore[arg-type]
        pad_id=np.asarray(token_map[engram.pad_token_id], np.int32),  # type: ignore[arg-type]
        multipliers=limbs(np.stack(factors)),  # type: ignore[arg-type]
    )
