"""Narrow formats, bit for bit: tables, rounding, quantisers and packed matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import golden

from dsinfer_jax.kernels import block_formats as formats
from dsinfer_jax.model.numerics import RUNTIME, dequantise
from dsinfer_jax.model.params import Quantised


def test_tables():
    codes = jnp.arange(256, dtype=jnp.uint8)
    np.testing.assert_array_equal(formats.e2m1_values(codes[:16]), golden("tables.e2m1"))
    np.testing.assert_array_equal(formats.power_of_two(codes[:255]), golden("tables.ue8m0"))
    e4m3 = jax.lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)[:, None]
    unit = jnp.full((256, 1), 127, jnp.uint8)
    values = formats.decode_e4m3_rows(e4m3, unit, jnp.float32)[:, 0]
    np.testing.assert_array_equal(values, golden("tables.e4m3"))  # NaN equals NaN here


def test_e2m1_rounding():
    codes = formats.e2m1_codes(jnp.asarray(golden("e2m1_round.input")))
    np.testing.assert_array_equal(codes, golden("e2m1_round.codes"))


@pytest.mark.parametrize(
    ("format_max", "floor", "block_max", "byte"),
    [
        *((formats.E4M3_MAX, formats.E4M3_FLOOR, *pair) for pair in
          ((448, 127), (449, 128), (1.75, 119), (1.76, 120), (0, 105))),
        *((formats.E2M1_MAX, formats.E2M1_FLOOR, *pair) for pair in
          ((6, 127), (6.01, 128), (3, 126), (1, 125), (0, 1))),
    ],
)  # fmt: skip
def test_scale_bytes(format_max, floor, block_max, byte):
    """The check values of model.md 0.3, and exactness at every power of two."""
    found = formats.exponent_bytes(jnp.float32(block_max), format_max, floor)
    assert int(found) == byte
    for power in range(-10, 11):
        at = formats.exponent_bytes(jnp.float32(format_max * 2.0**power), format_max, floor)
        above = np.nextafter(np.float32(format_max * 2.0**power), np.float32(np.inf))
        assert int(at) == 127 + power
        assert int(formats.exponent_bytes(above, format_max, floor)) == 128 + power


def _encode_halves(x):
    codes, scale = formats.e2m1_blocks(x)
    return formats.pack_halves(codes), scale


def _decode_halves(packed, scale, dtype):
    return jnp.concatenate(formats.decode_e2m1_halves(packed, scale, dtype), axis=-1)


@pytest.mark.parametrize("width", [32, 64, 96, 128])
def test_halves_decode_like_pairs(width):
    """A block of 32 may straddle the middle."""
    x = jnp.asarray(np.random.default_rng(width).standard_normal((5, width)), jnp.float32)
    codes, scale = formats.e2m1_blocks(x)
    pairs = formats.decode_e2m1_rows(formats.pack_nibbles(codes), scale, jnp.float32)
    np.testing.assert_array_equal(_decode_halves(*_encode_halves(x), jnp.float32), pairs)


@pytest.mark.parametrize(
    ("name", "encode", "decode"),
    [
        ("fp8_ue8m0_32", formats.e4m3_blocks, formats.decode_e4m3_rows),
        ("fp4_ue8m0_32", _encode_halves, _decode_halves),
        ("fp4_e4m3_16", formats.e2m1_e4m3_blocks, formats.decode_e2m1_rows),
    ],
)
def test_activation_quantisers(name, encode, decode):
    codes, scale = encode(jnp.asarray(golden("act.input")))
    np.testing.assert_array_equal(decode(codes, scale, jnp.float32), golden(f"act.{name}.dequant"))


def test_quantised_values_are_exact_in_bfloat16():
    x = jnp.asarray(golden("act.input"))
    expected = golden("act.fp8_ue8m0_32.dequant")
    np.testing.assert_array_equal(RUNTIME.quantised(x).astype(jnp.float32), expected)


def test_ragged_fp8_matrix():
    codes = jax.lax.bitcast_convert_type(jnp.asarray(golden("fp8_block.codes")), jnp.float8_e4m3fn)
    weight = Quantised(codes, jnp.asarray(golden("fp8_block.scale_bytes")))
    np.testing.assert_array_equal(
        dequantise(weight, jnp.dtype(jnp.float32)), golden("fp8_block.dequant")
    )


def test_packed_fp4_matrix():
    codes, scale = formats.e2m1_blocks(jnp.asarray(golden("mxfp4.input")))
    packed = formats.pack_nibbles(codes)
    np.testing.assert_array_equal(packed, golden("mxfp4.packed"))
    np.testing.assert_array_equal(scale, golden("mxfp4.scale_bytes"))
    np.testing.assert_array_equal(
        formats.decode_e2m1_rows(packed, scale, jnp.float32), golden("mxfp4.dequant")
    )


def test_saturation_and_subnormals():
    """Casts saturate, never turn into NaN; e4m3 subnormals survive."""
    x = jnp.zeros(32).at[0].set(448.0).at[1].set(-448.0).at[2].set(2.0**-9).at[3].set(2.0**-11)
    codes, scale = formats.e4m3_blocks(x)
    values = np.asarray(formats.decode_e4m3_rows(codes, scale, jnp.float32))
    assert values[:4].tolist() == [448.0, -448.0, 2.0**-9, 0.0]
    assert np.asarray(formats.e2m1_codes(jnp.array([7.0, -100.0]))).tolist() == [7, 15]
