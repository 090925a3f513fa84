"""Rotary embedding of the last channels, its inverse, and static YaRN (model.md 4.3)."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax.config import ModelConfig, RopeScaling

Array = jax.Array


def inverse_frequencies(config: ModelConfig, ratio: int) -> np.ndarray:
    """float32 [rotary / 2] of a layer with this compression ratio: C0 plain, C1 and C2 with
    YaRN."""
    if ratio == 0:
        return frequencies(config.rope_theta, config.qk_rope_head_dim, None)
    return frequencies(config.compress_rope_theta, config.qk_rope_head_dim, config.rope_scaling)


def frequencies(base: float, rotary: int, scaling: RopeScaling | None) -> np.ndarray:
    """base^(-2j / rotary), and YaRN's blend of it with the interpolated frequencies."""
    exponents = np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary)
    powers = np.power(float(base), exponents.astype(np.float64)).astype(np.float32)
    plain = np.float32(1.0) / powers
    if scaling is None:
        return plain

    def dimension_of(rotations: float) -> float:
        turns = scaling.original_max_position_embeddings / (rotations * 2 * math.pi)
        return rotary * math.log(turns) / (2 * math.log(base))

    low = max(math.floor(dimension_of(scaling.beta_fast)), 0)
    high: float = min(math.ceil(dimension_of(scaling.beta_slow)), rotary - 1)
    if low == high:
        high += 0.001
    steps = np.arange(rotary // 2, dtype=np.float32)
    kept = 1 - np.clip((steps - np.float32(low)) / np.float32(high - low), 0, 1)
    return plain / np.float32(scaling.factor) * (1 - kept) + plain * kept


def rotate(x: Array, positions: Array, inverse_freq: np.ndarray, inverse: bool = False) -> Array:
    """Turn the interleaved pairs of the last 2 * len(inverse_freq) channels, in float32.

    Args:
        x: [rows, ..., width].
        positions: [rows] int32. The angle is the float32 product position * frequency, error
            included.
    """
    x = x.astype(jnp.float32)
    rotary = 2 * len(inverse_freq)
    angle = positions.astype(jnp.float32)[:, None] * jnp.asarray(inverse_freq)
    angle = angle.reshape(angle.shape[0], *(1,) * (x.ndim - 2), angle.shape[1])
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    if inverse:
        sin = -sin
    plain, turned = x[..., :-rotary], x[..., -rotary:]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return jnp.concatenate([plain, pairs.reshape(turned.shape)], axis=-1)
