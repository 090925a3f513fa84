"""Values of stored formats while a model learns; gradients pass straight through the rounding."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.numerics import RUNTIME, Numerics

Array = jax.Array


@dataclass(frozen=True)
class StraightThrough(Numerics):
    """Float32, but what enters a product with a stored matrix has the values of e4m3 blocks."""

    def quantised(self, x: Array) -> Array:
        return rounded_by(RUNTIME.quantised, x)


ROUNDED = StraightThrough("rounded", rounds=False)


def rounded_by(rounding: Callable[[Array], Array], x: Array) -> Array:
    """The values of `rounding(x)` with the gradients of x."""
    return x + lax.stop_gradient(rounding(x).astype(jnp.float32) - x)


def as_window_keys(keys: Array) -> Array:
    """Keys [..., head_dim] as the window keeps them."""
    return rounded_by(lambda x: caches.decode(caches.encode_window(x, RUNTIME), RUNTIME), keys)


def as_compressed_keys(keys: Array, config: ModelConfig) -> Array:
    """Compressed keys [..., head_dim] as the cache keeps them."""
    return rounded_by(
        lambda x: caches.decode(caches.encode_main(x, config, RUNTIME), RUNTIME), keys
    )


def as_index_values(x: Array) -> Array:
    """Index keys or queries [..., index_dim] as they are compared."""

    def rounding(x: Array) -> Array:
        parts = caches.decode_index(caches.encode_index(x, RUNTIME), RUNTIME)
        return jnp.concatenate(parts, axis=-1)

    return rounded_by(rounding, x)
