"""Where values are rounded: one frozen policy, and the products that obey it (model.md 0.4,
design.md 3).

The forward code is the same for every policy. It calls `store` where the model rounds to bf16,
`quantised` where it quantises an activation, and the products below; the policy decides what those
do.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.kernels import block_formats
from dsinfer_jax.model.params import Quantised

Array = jax.Array

# Row counts are multiples of the first in every program, output widths are padded to multiples of
# the second: with both, a row of a product keeps its bits in any batch on the CPU.
ROW_MULTIPLE = 8
COLUMN_MULTIPLE = 64


@dataclass(frozen=True)
class Numerics:
    """A rounding policy. Use EXACT, RUNTIME or REFERENCE, or `replace` a switch of one of them."""

    name: str
    rounds: bool  # bf16 results, quantised activations and caches; False: float32 throughout
    quantise_context: bool = True  # Q8 of the attention result before the output projection
    expert_hidden_bf16: bool = False  # round the expert hidden value to bf16 before its Q8
    fused_attention: bool = True  # bf16 softmax weights and a float32 context up to its Q8;
    # unfused: float32 weights, context rounded to bf16 before and after the inverse rotation

    @property
    def dtype(self) -> jnp.dtype:
        """Type of values between operations."""
        return jnp.dtype(jnp.bfloat16 if self.rounds else jnp.float32)

    @property
    def attention_weights(self) -> jnp.dtype:
        """Type the softmax weights are rounded to before they meet the values."""
        return self.dtype if self.fused_attention else jnp.dtype(jnp.float32)

    def store(self, x: Array) -> Array:
        """`bf` of model.md 0.4: round a float32 result to the type values are kept in."""
        return x.astype(self.dtype)

    def quantised(self, x: Array) -> Array:
        """`Q8` of model.md 0.4, through its dequantised value."""
        if not self.rounds:
            return x
        codes, scale = block_formats.e4m3_blocks(x)
        return block_formats.decode_e4m3_rows(codes, scale, self.dtype)


EXACT = Numerics("exact", rounds=False)
RUNTIME = Numerics("runtime", rounds=True)
REFERENCE = Numerics(
    "reference",
    rounds=True,
    quantise_context=False,
    expert_hidden_bf16=True,
    fused_attention=False,
)
UNFUSED = replace(RUNTIME, fused_attention=False)
POLICIES = {policy.name: policy for policy in (EXACT, RUNTIME, REFERENCE)}


def dequantise(weight: Quantised | Array, dtype: jnp.dtype) -> Array:
    """An e4m3 matrix [..., out, in] in a compute type; exact in bf16.

    In a tree that is being trained a float matrix stands in the place of the stored format.
    """
    if not isinstance(weight, Quantised):
        return weight.astype(dtype)
    return block_formats.decode_e4m3_matrix(weight.weight, weight.scale, dtype)


def dequantised_rows(rows: Quantised | Array, dtype: jnp.dtype) -> Array:
    """Rows of an e4m3 table, each with its own scales, in a compute type; see `dequantise`."""
    if not isinstance(rows, Quantised):
        return rows.astype(dtype)
    return block_formats.decode_e4m3_rows(rows.weight, rows.scale, dtype)


def rows_product(x: Array, weight: Array) -> Array:
    """x [..., rows, in] . weight [out, in]^T -> float32 [..., rows, out], accumulated in float32.

    Both operands have one type; float32 operands are multiplied at full precision on every back
    end.
    """
    columns = weight.shape[0]
    padding = -columns % COLUMN_MULTIPLE
    if padding:
        weight = jnp.pad(weight, ((0, padding), (0, 0)))
    result = lax.dot_general(
        x,
        weight,
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return result[..., :columns]


def product_fp8(x: Array, weight: Quantised, numerics: Numerics) -> Array:
    """`G8`: quantised activations times an e4m3 weight, rounded. x [rows, in] -> [rows, out]."""
    weight_values = dequantise(weight, numerics.dtype)
    return numerics.store(rows_product(numerics.quantised(x), weight_values))


def product_float(x: Array, weight: Array, numerics: Numerics) -> Array:
    """`G32`: bf16 operands, the float32 accumulator is the result."""
    return rows_product(x.astype(numerics.dtype), weight.astype(numerics.dtype))


def product_bf16(x: Array, weight: Array, numerics: Numerics) -> Array:
    """`Gb`: bf16 operands, rounded result."""
    return numerics.store(product_float(x, weight, numerics))


def rms_norm(x: Array, weight: Array, eps: float, numerics: Numerics) -> Array:
    """`rms` over the last axis: float32 from left to right, one rounding at the end."""
    x = x.astype(jnp.float32)
    inverse = lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return numerics.store(x * inverse * weight.astype(jnp.float32))
