"""Seeded random weights in the stored formats, for tests and demonstrations (model.md 13).

Drawn on the host leaf by leaf; a leaf depends on the seed and on its own place in the tree only, so
adding a leaf leaves the others as they were. Not meant for published sizes: those are planned with
`params.abstract`.
"""

import math
import zlib
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from dsinfer_jax.config import QUANTISATION_BLOCK, ModelConfig
from dsinfer_jax.model.hashing import hash_params
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec
from dsinfer_jax.model.params import Array, Params, build_tree

_E4M3_MAX = 448.0
_E4M3_RMS = 112.0  # then a block of 1024 normals just fits the format
_E2M1_RMS = math.sqrt(68.5 / 8)  # of sixteen equally likely codes
_SCALE_SPREAD_RMS = math.sqrt((0.25 + 1 + 4) / 3)  # of the factors 1/2, 1 and 2
_UE8M0_BIAS = 127


def init(config: ModelConfig, seed: int, *, token_map: np.ndarray | None = None) -> Params:
    """Random parameters of a small configuration; the same seed gives the same bits.

    Args:
        config: sizes; every leaf of its parameter table is drawn.
        seed: any non-negative integer.
        token_map: int `[tokens]`, folded vocabulary of model.md 8.1. By default an id stays itself.
    """
    hashes = None
    if config.engram is not None:
        identity = np.arange(config.vocab_size, dtype=np.int32)
        hashes = hash_params(config, identity if token_map is None else token_map)

    def leaf(spec: TensorSpec) -> Array:
        if not spec.name:
            return jnp.asarray(getattr(hashes, str(spec.path[-1])))
        place = zlib.crc32("/".join(map(str, spec.path)).encode())
        values = _draw(spec, np.random.default_rng((seed, place)))
        return jnp.asarray(values.astype(MEMORY_DTYPES[spec.dtype], copy=False))

    return build_tree(config, leaf)


def _draw(spec: TensorSpec, random: np.random.Generator) -> np.ndarray:
    shape = spec.stacked_shape
    if spec.dtype == "I8":
        return random.integers(
            0, 256, shape, np.uint8
        )  # two codes at once, all sixteen equally often
    if spec.dtype == "F8_E8M0":
        return _scales(spec, random)
    normal = random.standard_normal(shape, np.float32)
    if spec.dtype == "F8_E4M3":
        return np.clip(normal * _E4M3_RMS, -_E4M3_MAX, _E4M3_MAX)
    return _SHAPED[spec.init](normal)


def _scales(spec: TensorSpec, random: np.random.Generator) -> np.ndarray:
    """Exponent bytes: rows of about unit length, embeddings of unit values; neighbours differ."""
    inputs = 1 if spec.init == "embedding" else spec.shape[-1] * QUANTISATION_BLOCK
    code_rms = _E4M3_RMS if spec.experts is None else _E2M1_RMS
    target = 1 / (math.sqrt(inputs) * code_rms * _SCALE_SPREAD_RMS)
    spread = random.integers(-1, 2, spec.stacked_shape, np.int16)
    return (spread + _UE8M0_BIAS + round(math.log2(target))).astype(np.uint8)


def _matrix(normal: np.ndarray) -> np.ndarray:
    return normal / math.sqrt(normal.shape[-1])


# Spreads large enough that no part is inert, small enough that Sinkhorn and routing stay undecided.
_SHAPED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "normal": _matrix,
    "embedding": lambda normal: normal,
    "norm": lambda normal: 1 + 0.1 * normal,
    "sink": lambda normal: normal,
    "gate_bias": lambda normal: 0.1 * normal,
    "hc_fn": _matrix,
    "hc_base": lambda normal: 0.5 * normal,
    "hc_scale": lambda normal: 1 + 0.1 * normal,
}
