"""Narrow number formats with block scales (model.md 0.3): encode, decode, pack.

e4m3   8-bit float, largest value 448         e2m1   4-bit float, 0 .5 1 1.5 2 3 4 6 and negatives,
two per byte ue8m0  one byte b, a scale of 2^(b - 127)

Everything is exact bit arithmetic in plain jax: equal on every back end.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

E4M3_MAX, E2M1_MAX = 448.0, 6.0
E4M3_FLOOR = 1e-4  # smallest block maximum of e4m3 activations and window keys
E2M1_FLOOR = 6.0 * 2.0**-126  # of e2m1 index queries and keys
E2M1_E4M3_FLOOR = 6.0 * 2.0**-9  # of compressed keys, whose scale is an e4m3 number
_E4M3_BYTES = jnp.float8_e4m3fn


def power_of_two(exponent_bytes: Array) -> Array:
    """float32 value 2^(b - 127) of ue8m0 bytes 0..254; byte 0 is the subnormal 2^-127."""
    wide = exponent_bytes.astype(jnp.uint32)
    bits = jnp.where(wide == 0, jnp.uint32(1 << 22), wide << 23)
    return lax.bitcast_convert_type(bits, jnp.float32)


def exponent_bytes(block_max: Array, format_max: float, floor: float) -> Array:
    """ue8m0 byte of the smallest power of two that brings `block_max` within the format."""
    scale = jnp.maximum(block_max, floor) * jnp.float32(1.0 / format_max)
    bits = lax.bitcast_convert_type(scale, jnp.uint32)
    return (((bits - 1) >> 23) + 1).astype(jnp.uint8)


def _blocks(x: Array, block: int) -> Array:
    """float32 view [..., blocks, block] of the last axis."""
    return x.astype(jnp.float32).reshape(*x.shape[:-1], -1, block)


def e4m3_blocks(x: Array, block: int = 32) -> tuple[Array, Array]:
    """Quantise the last axis: e4m3 codes [..., n] and ue8m0 bytes [..., n / block]."""
    blocks = _blocks(x, block)
    scale = exponent_bytes(jnp.max(jnp.abs(blocks), axis=-1), E4M3_MAX, E4M3_FLOOR)
    scaled = blocks * power_of_two(254 - scale)[..., None]
    # the cast gives NaN above 464, so saturate first
    codes = jnp.clip(scaled, -E4M3_MAX, E4M3_MAX).astype(_E4M3_BYTES)
    return codes.reshape(x.shape), scale


def e2m1_blocks(x: Array, block: int = 32) -> tuple[Array, Array]:
    """Quantise the last axis: e2m1 codes [..., n], not packed, and ue8m0 bytes [..., n / block]."""
    blocks = _blocks(x, block)
    scale = exponent_bytes(jnp.max(jnp.abs(blocks), axis=-1), E2M1_MAX, E2M1_FLOOR)
    codes = e2m1_codes(blocks * power_of_two(254 - scale)[..., None])
    return codes.reshape(x.shape), scale


def e2m1_e4m3_blocks(x: Array, block: int = 16) -> tuple[Array, Array]:
    """Quantise the last axis: packed e2m1 [..., n / 2] and e4m3 scales [..., n / block]."""
    blocks = _blocks(x, block)
    block_max = jnp.maximum(jnp.max(jnp.abs(blocks), axis=-1), E2M1_E4M3_FLOOR)
    ratio = jnp.minimum(block_max * jnp.float32(1.0 / E2M1_MAX), E4M3_MAX)
    scale = ratio.astype(_E4M3_BYTES)
    codes = e2m1_codes(blocks * (1.0 / scale.astype(jnp.float32))[..., None])
    return pack_nibbles(codes.reshape(x.shape)), scale


def e2m1_codes(x: Array) -> Array:
    """Nearest e2m1 code (uint8 0..15), ties to the even code, saturating at 6."""
    size = jnp.abs(x)
    index = sum(
        passed.astype(jnp.uint8)
        for passed in (
            size > 0.25,
            size >= 0.75,
            size > 1.25,
            size >= 1.75,
            size > 2.5,
            size >= 3.5,
            size > 5.0,
        )
    )
    return index + jnp.signbit(x).astype(jnp.uint8) * jnp.uint8(8)


def e2m1_values(codes: Array, dtype: jnp.dtype = jnp.float32) -> Array:
    """Values of e2m1 codes. Twice a value is the integer (2 + mantissa) << (exponent - 1)."""
    magnitude = codes.astype(jnp.int32) & 7
    exponent, mantissa = magnitude >> 1, magnitude & 1
    doubled = jnp.where(exponent == 0, mantissa, ((2 + mantissa) << exponent) >> 1)
    value = doubled.astype(jnp.float32) * 0.5
    return jnp.where(codes >= 8, -value, value).astype(dtype)


def pack_nibbles(codes: Array) -> Array:
    """Two codes per byte, the even index in the low nibble: [..., n] -> [..., n / 2]."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Array) -> Array:
    """Inverse of `pack_nibbles`: [..., n] -> [..., 2 n]."""
    pairs = jnp.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1)


def pack_halves(codes: Array) -> Array:
    """Two codes per byte, the first half of the axis in the low nibbles: [..., n] -> [..., n / 2].

    Unlike pairs, halves unpack without interleaving, which costs as much as the decoding itself.
    """
    low, high = jnp.split(codes, 2, axis=-1)
    return low | (high << 4)


def decode_e2m1_halves(packed: Array, scale: Array, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Both halves [..., n / 2] of vectors packed by `pack_halves`; ue8m0 bytes [..., n / block]."""
    half = packed.shape[-1]
    block = 2 * half // scale.shape[-1]
    split_block = math.gcd(block, half)  # a block may straddle the middle
    factor = jnp.repeat(power_of_two(scale), block // split_block, axis=-1)
    low_scale, high_scale = jnp.split(factor, 2, axis=-1)
    return (
        _times_block_scale(e2m1_values(packed & 15), low_scale, dtype),
        _times_block_scale(e2m1_values(packed >> 4), high_scale, dtype),
    )


def _narrowed(values: Array, dtype: jnp.dtype) -> Array:
    """float32 values in a compute type that holds them exactly: bf16 by dropping zero bits.

    A cast would round, which on a CPU costs as much as the decoding. Decoded numbers have at most
    six significant bits.
    """
    if jnp.dtype(dtype) != jnp.bfloat16:
        return values.astype(dtype)
    bits = lax.bitcast_convert_type(values, jnp.uint32) >> 16
    return lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.bfloat16)


def _times_block_scale(values: Array, scale: Array, dtype: jnp.dtype) -> Array:
    block = values.shape[-1] // scale.shape[-1]
    blocks = values.reshape(*scale.shape, block) * scale[..., None]
    return _narrowed(blocks.reshape(values.shape), dtype)


def decode_e4m3_rows(codes: Array, scale: Array, dtype: jnp.dtype) -> Array:
    """e4m3 codes [..., n] with one ue8m0 byte per n / scale.shape[-1] columns."""
    return _times_block_scale(codes.astype(jnp.float32), power_of_two(scale), dtype)


def decode_e2m1_rows(packed: Array, scale: Array, dtype: jnp.dtype) -> Array:
    """Packed e2m1 [..., n / 2] with a scale (ue8m0 bytes or e4m3 numbers) per block of columns."""
    factor = power_of_two(scale) if scale.dtype == jnp.uint8 else scale.astype(jnp.float32)
    return _times_block_scale(e2m1_values(unpack_nibbles(packed)), factor, dtype)


def decode_e4m3_matrix(codes: Array, scale: Array, dtype: jnp.dtype, block: int = 32) -> Array:
    """e4m3 matrix [..., out, in] with one ue8m0 byte per block x block tile, ragged at the
    edges."""
    factor = power_of_two(scale)
    for axis in (-2, -1):
        factor = jnp.repeat(factor, block, axis=axis)
    rows, columns = codes.shape[-2:]
    return _narrowed(codes.astype(jnp.float32) * factor[..., :rows, :columns], dtype)
