"""Many small arrays as one, so that a step is one transfer down and one up.

A transfer costs tens of microseconds whatever its size (jax-practice.md 5.2).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array


class Packing:
    """The layout of a tree of bool and 32-bit leaves inside one int32 vector.

    Args:
        example: a tree of arrays or of their shapes; only structure, shapes and dtypes matter.
    """

    def __init__(self, example: Any) -> None:
        leaves, self._structure = jax.tree.flatten(example)
        self._names = [name for name, _ in named_leaves(example)]
        self._shapes = [leaf.shape for leaf in leaves]
        self._dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
        ends = np.cumsum([math.prod(shape) for shape in self._shapes])
        self._ends = [int(end) for end in ends]

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return self._ends[-1]

    def pack(self, tree: Any) -> np.ndarray:
        """The vector of a host tree of the example's structure: int32 `[size]`."""
        vector = np.empty(self.size, np.int32)
        start = 0
        for leaf, end in zip(jax.tree.leaves(tree), self._ends):
            flat = leaf.reshape(-1)
            vector[start:end] = flat if flat.dtype == np.bool_ else flat.view(np.int32)
            start = end
        return vector

    def unpack(self, vector: Array) -> Any:
        """The tree again, inside a program."""
        return self._tree(
            part != 0 if dtype == np.bool_ else lax.bitcast_convert_type(part, jnp.dtype(dtype))
            for part, dtype in self._parts(vector)
        )

    def unpack_host(self, vector: np.ndarray) -> Any:
        """The tree again, as numpy arrays."""
        return self._tree(
            part != 0 if dtype == np.bool_ else part.view(dtype)
            for part, dtype in self._parts(vector)
        )

    def named(self, vectors: Sequence[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """The leaves of several vectors as words, those of one name joined, with their names."""
        stacked, start = np.stack(vectors), 0
        for name, end in zip(self._names, self._ends):
            yield name, stacked[:, start:end]
            start = end

    def _parts(self, vector: Any) -> Iterator[tuple[Any, np.dtype]]:
        start = 0
        for shape, dtype, end in zip(self._shapes, self._dtypes, self._ends):
            yield vector[start:end].reshape(shape), dtype
            start = end

    def _tree(self, leaves: Iterable[Any]) -> Any:
        return jax.tree.unflatten(self._structure, list(leaves))


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree with their names, such as "draws.seeds"."""
    paths, _ = jax.tree.flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]


def pack_on_device(tree: Any) -> Array:
    """The vector of a tree of bool and 32-bit leaves, inside a program."""

    def words(leaf: Array) -> Array:
        flat = leaf.reshape(-1)
        if flat.dtype == np.bool_:
            return flat.astype(jnp.int32)
        return lax.bitcast_convert_type(flat, jnp.int32)

    return jnp.concatenate([words(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)])
