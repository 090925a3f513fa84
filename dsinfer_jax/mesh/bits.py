"""Collectives that only move values, on the bits of them.

Back ends differ in the types that their collectives take, and some widen narrow floats on the way.
Unsigned integers of the same width travel everywhere as they are.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

Array = jax.Array
Tree = TypeVar("Tree")
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def move(collective: Callable[[Array], Array], tree: Tree) -> Tree:
    """A collective over the bits of every leaf."""
    return jax.tree.map(lambda leaf: as_type(collective(bits(leaf)), leaf.dtype), tree)


def bits(leaf: Array) -> Array:
    """Floats as unsigned integers of their width; other types as they are."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    return lax.bitcast_convert_type(leaf, _WORDS[leaf.dtype.itemsize])


def as_type(leaf: Array, dtype: DTypeLike) -> Array:
    """The inverse of `bits`."""
    return leaf if leaf.dtype == dtype else lax.bitcast_convert_type(leaf, dtype)
