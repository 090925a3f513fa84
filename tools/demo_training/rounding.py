"""Values of stored formats while a model learns; gradients pass straight through the rounding."""

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
        return straight_through(x, RUNTIME.quantised(x).astype(jnp.float32))


ROUNDED = StraightThrough("rounded", rounds=False)


def straight_through(x: Array, rounded: Array) -> Array:
    """The values of `rounded`, float32, with the gradients of x."""
    return x + lax.stop_gradient(rounded - x)


def as_window_keys(keys: Array) -> Array:
    """Keys [..., head_dim] as the window keeps them."""
    return _as_stored(keys, caches.encode_window(keys, RUNTIME))


def as_compressed_keys(keys: Array, config: ModelConfig) -> Array:
    """Compressed keys [..., head_dim] as the cache keeps them."""
    return _as_stored(keys, caches.encode_main(keys, config, RUNTIME))


def as_index_values(x: Array) -> Array:
    """Index keys or queries [..., index_dim] as they are compared."""
    parts = caches.decode_index(caches.encode_index(x, RUNTIME), RUNTIME)
    return straight_through(x, jnp.concatenate(parts, axis=-1).astype(jnp.float32))


def _as_stored(keys: Array, stored: caches.Stored) -> Array:
    return straight_through(keys, caches.decode(stored, RUNTIME).astype(jnp.float32))
