"""Weights while they are trained, float32, and as they are stored: e4m3, packed e2m1, bf16.

A trained tree is the engine's `Params` with a float32 matrix in the place of every stored format.
Its leaves are rows of the parameter table, as everywhere.
"""

import math
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from demo_training.rounding import straight_through
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.kernels import block_formats
from dsinfer_jax.model.hashing import hash_params
from dsinfer_jax.model.numerics import dequantise, dequantised_rows
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec, parameter_table
from dsinfer_jax.model.params import Array, Params, Quantised, build_tree, leaf_at

_BLOCK = 32
_IDENTITY = 3.0  # logit that keeps a stream in its place at the start


def initial(config: ModelConfig, seed: int, token_map: np.ndarray) -> Params:
    """A float32 tree to train from; a leaf depends on the seed and its own place only."""
    hashes = hash_params(config, token_map) if config.engram is not None else None
    depth = math.sqrt(2 * config.num_hidden_layers)

    def leaf(spec: TensorSpec) -> Array | None:
        if not spec.name:
            return jnp.asarray(getattr(hashes, str(spec.path[-1])))
        if spec.path[-1] == "scale" and spec.dtype == "F8_E8M0":
            return None
        place = zlib.crc32("/".join(map(str, spec.path)).encode())
        shape = spec.stacked_shape
        if spec.dtype == "I8":
            shape = (*shape[:-1], 2 * shape[-1])
        normal = np.random.default_rng((seed, place)).standard_normal(shape, np.float32)
        return jnp.asarray(_start(spec, normal, depth, config), jnp.float32)

    return _without_scales(build_tree(config, leaf))


def _start(spec: TensorSpec, normal: np.ndarray, depth: float, config: ModelConfig) -> np.ndarray:
    field = str(spec.path[-1])
    if spec.init == "norm":
        return np.ones_like(normal)
    if spec.init in ("sink", "gate_bias"):
        return np.zeros_like(normal)
    if spec.init == "hc_scale":
        return np.full_like(normal, 0.3)
    if spec.init == "hc_base":
        base = 0.3 * normal
        streams = config.hc_mult
        if base.shape[-1] == config.mixes:
            base[..., 2 * streams :] += _IDENTITY * np.eye(streams, dtype=np.float32).reshape(-1)
        return base
    if spec.init == "embedding":
        return 0.5 * normal
    if field in ("q_weight", "k_weight"):  # of the n-gram memory: scales of a normalised product
        return np.ones_like(normal)
    matrix = normal / math.sqrt(normal.shape[-1])
    writes = any(part in ("wo_b", "w2") for part in map(str, spec.path))
    return matrix / depth if writes else matrix


def _without_scales(tree: Params) -> Params:
    return jax.tree.map(
        lambda leaf: leaf.weight if isinstance(leaf, Quantised) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Quantised),
    )


def stored(trained: Params, config: ModelConfig) -> Params:
    """The tree in the stored formats, as the engine and a checkpoint have it."""

    def leaf(spec: TensorSpec) -> Array:
        if not spec.name:
            return leaf_at(trained, spec)
        if spec.path[-1] in ("weight", "scale") and spec.dtype in ("F8_E4M3", "F8_E8M0", "I8"):
            quantised = _quantised(_float_leaf(trained, spec), spec)
            return quantised.weight if spec.path[-1] == "weight" else quantised.scale
        return leaf_at(trained, spec).astype(MEMORY_DTYPES[spec.dtype])

    return build_tree(config, leaf)


def as_stored(trained: Params, config: ModelConfig, part: str | None = None) -> Params:
    """Float32 values of the stored formats, with the gradient of the values before rounding.

    Args:
        part: field of the tree that is rounded, the others stay; None: all.
    """
    rounded: dict[tuple[str | int, ...], Array] = {}
    for spec in parameter_table(config):
        if not spec.name or spec.dtype == "F8_E8M0":
            continue
        if part not in (None, spec.path[0]):
            place = spec.path[:-1] if spec.dtype in ("F8_E4M3", "I8") else spec.path
            rounded[place] = _node(trained, place)
        elif spec.dtype in ("F8_E4M3", "I8"):
            value = _float_leaf(trained, spec)
            back = _values(_quantised(value, spec), spec)
            rounded[spec.path[:-1]] = straight_through(value, back)
        else:
            value = leaf_at(trained, spec)
            back = value.astype(MEMORY_DTYPES[spec.dtype]).astype(jnp.float32)
            rounded[spec.path] = straight_through(value, back)

    def leaf(spec: TensorSpec) -> Array | None:
        if not spec.name:
            return leaf_at(trained, spec)
        if spec.dtype == "F8_E8M0":
            return None
        return rounded[spec.path[:-1] if spec.dtype in ("F8_E4M3", "I8") else spec.path]

    return _without_scales(build_tree(config, leaf))


def _float_leaf(trained: Params, spec: TensorSpec) -> Array:
    """The float matrix that stands where a weight and its scales will be."""
    return _node(trained, spec.path[:-1])


def _node(tree: Params, path: tuple[str | int, ...]) -> Array:
    node = tree
    for key in path:
        node = node[key] if isinstance(key, int) else getattr(node, key)  # type: ignore[index]
    return jnp.asarray(node)


def _is_table(spec: TensorSpec) -> bool:
    """Rows that are looked up have scales of their own."""
    return "embed" in spec.path


def _quantised(value: Array, spec: TensorSpec) -> Quantised:
    if spec.experts is not None and spec.path[0] in ("experts", "draft"):
        codes, scale = block_formats.e2m1_blocks(value, _BLOCK)
        return Quantised(block_formats.pack_nibbles(codes), scale)
    if _is_table(spec):
        return Quantised(*block_formats.e4m3_blocks(value, _BLOCK))
    return _matrix_blocks(value)


def _matrix_blocks(value: Array) -> Quantised:
    """e4m3 with one scale for each 32 x 32 block, ragged at the edges."""
    rows, columns = value.shape[-2:]
    lead = [(0, 0)] * (value.ndim - 2)
    padded = jnp.pad(value, [*lead, (0, -rows % _BLOCK), (0, -columns % _BLOCK)])
    blocks = padded.reshape(*value.shape[:-2], -(-rows // _BLOCK), _BLOCK, -1, _BLOCK)
    largest = jnp.max(jnp.abs(blocks), axis=(-3, -1))
    scale = block_formats.exponent_bytes(largest, block_formats.E4M3_MAX, block_formats.E4M3_FLOOR)
    factor = block_formats.power_of_two(254 - scale)
    for axis in (-2, -1):
        factor = jnp.repeat(factor, _BLOCK, axis=axis)
    scaled = value * factor[..., :rows, :columns]
    codes = jnp.clip(scaled, -block_formats.E4M3_MAX, block_formats.E4M3_MAX)
    return Quantised(codes.astype(MEMORY_DTYPES["F8_E4M3"]), scale)


def _values(quantised: Quantised, spec: TensorSpec) -> Array:
    float32 = jnp.dtype(jnp.float32)
    if spec.dtype == "I8":
        return block_formats.decode_e2m1_rows(quantised.weight, quantised.scale, float32)
    decode: Callable[..., Array] = dequantised_rows if _is_table(spec) else dequantise
    return decode(quantised, float32)
