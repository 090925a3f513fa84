"""The cache tree: what each layer keeps per token and per sequence (model.md 12).

Two kinds of memory. *Blocks* hold compressed keys and index keys of 128 original tokens each; any
sequence may own any block, through its block table. *Slots* hold what a sequence keeps in bounded
size: rings over position, where position p lives at p mod ring. Reads are bounded by position,
never by what is in the place: a ring may hold a rejected draft or an earlier lap.

The tree has few, fat leaves, is donated to every program and written in place.
"""

import math
from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jax.typing import DTypeLike

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.kernels import block_formats
from dsinfer_jax.model.numerics import RUNTIME, Numerics

Array = jax.Array


@register_dataclass
@dataclass(frozen=True)
class Stored:
    """Vectors in their cache format: codes and block scales, or (exact policy) plain float32
    values."""

    codes: Array
    scale: Array | None


@register_dataclass
@dataclass(frozen=True)
class Cache:
    """Device memory of the engine. Dictionaries are keyed by compression ratio."""

    window: Stored  # [layers, slots, ring, head_dim]: rotated window keys of every layer
    main: dict[int, Stored]  # [sources, blocks, keys per block, head_dim]: compressed keys
    index: dict[int, Stored]  # [sources, blocks, keys per block, index_dim]: index keys
    pair_state: Array | None  # [ratio-2 sources, slots, pair ring, 2, head_dim] f32: gate, value
    recent_tokens: Array  # [slots, ring] int32: token ids, for the n-gram look-back
    draft_window: Stored | None  # [draft stages, slots, ring, head_dim]: main keys of the drafts


@dataclass(frozen=True)
class CacheSizes:
    """How much cache to allocate.

    Attributes:
        slots: sequences that can be active at once.
        blocks: blocks of 128 tokens shared by all sequences.
        rollback: B of model.md 7.2: positions that may be written ahead of the last accepted one,
            plus one.
    """

    slots: int
    blocks: int
    rollback: int = 6

    def window_ring(self, config: ModelConfig) -> int:
        return config.sliding_window + self.rollback

    def pair_ring(self) -> int:
        return 2 + self.rollback - 1


def init(config: ModelConfig, sizes: CacheSizes, numerics: Numerics) -> Cache:
    """A zero cache tree on the default device."""
    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract(config, sizes, numerics)
    )


def abstract(config: ModelConfig, sizes: CacheSizes, numerics: Numerics) -> Cache:
    """Shapes and dtypes of the cache tree, without memory."""
    ring, width = sizes.window_ring(config), config.head_dim
    main_format = "e2m1_e4m3" if config.use_fp4_sparse_kv else "e4m3"
    main, index = {}, {}
    for ratio in config.ratios:
        keys = (sizes.blocks, CACHE_BLOCK_TOKENS // ratio)
        sources = len(config.kv_sources(ratio))
        main[ratio] = _stored((sources, *keys, width), main_format, numerics)
        index_sources = len(index_key_sources(config, ratio))
        index[ratio] = _stored((index_sources, *keys, config.index_head_dim), "e2m1", numerics)
    pairs = len(config.kv_sources(2))
    pair_shape = (pairs, sizes.slots, sizes.pair_ring(), 2, width)
    draft_shape = (config.draft.layers if config.draft else 0, sizes.slots, ring, width)
    return Cache(
        window=_stored((config.num_hidden_layers, sizes.slots, ring, width), "e4m3", numerics),
        main=main,
        index=index,
        pair_state=_leaf(pair_shape, jnp.float32) if pairs else None,
        recent_tokens=_leaf((sizes.slots, ring), jnp.int32),
        draft_window=_stored(draft_shape, "e4m3", numerics) if config.draft else None,
    )


def index_key_sources(config: ModelConfig, ratio: int) -> tuple[int, ...]:
    """Layers that own index keys of this ratio, in order."""
    return tuple(
        spec.index for spec in config.layers if spec.owns_index_keys and spec.ratio == ratio
    )


def _leaf(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An abstract array, in the place of a real one."""
    return cast(Array, jax.ShapeDtypeStruct(shape, dtype))


def _stored(shape: tuple[int, ...], kind: str, numerics: Numerics) -> Stored:
    """Abstract leaves of vectors [..., width] in a cache format; wide when the policy does not
    round."""
    if not numerics.rounds:
        return Stored(_leaf(shape, jnp.float32), None)
    *rest, width = shape
    packed, block, scale_type = {
        "e4m3": (1, 32, jnp.uint8),
        "e2m1": (2, 32, jnp.uint8),
        "e2m1_e4m3": (2, 16, jnp.float8_e4m3fn),
    }[kind]
    codes_type = jnp.float8_e4m3fn if packed == 1 else jnp.uint8
    return Stored(
        codes=_leaf((*rest, width // packed), codes_type),
        scale=_leaf((*rest, width // block), scale_type),
    )


def encode_window(keys: Array, numerics: Numerics) -> Stored:
    """Window keys [..., head_dim] in their format: e4m3 in blocks of 32."""
    if not numerics.rounds:
        return Stored(keys.astype(jnp.float32), None)
    return Stored(*block_formats.e4m3_blocks(keys))


def encode_main(keys: Array, config: ModelConfig, numerics: Numerics) -> Stored:
    """Compressed keys [..., head_dim]: e2m1 in blocks of 16, or e4m3 in blocks of 32."""
    if not numerics.rounds or not config.use_fp4_sparse_kv:
        return encode_window(keys, numerics)
    return Stored(*block_formats.e2m1_e4m3_blocks(keys))


def encode_index(keys: Array, numerics: Numerics) -> Stored:
    """Index keys or queries [..., index_dim]: e2m1 in blocks of 32, packed by halves."""
    if not numerics.rounds:
        return Stored(keys.astype(jnp.float32), None)
    codes, scale = block_formats.e2m1_blocks(keys)
    return Stored(block_formats.pack_halves(codes), scale)


def decode_index(stored: Stored, numerics: Numerics) -> tuple[Array, ...]:
    """Values of index keys or queries, in parts that lie side by side in the last axis."""
    if stored.scale is None:
        return (stored.codes,)
    return block_formats.decode_e2m1_halves(stored.codes, stored.scale, numerics.dtype)


def decode(stored: Stored, numerics: Numerics) -> Array:
    """Values of window keys or compressed keys in the policy's type; exact in bf16."""
    if stored.scale is None:
        return stored.codes
    packed = stored.codes.dtype == jnp.uint8
    rows = block_formats.decode_e2m1_rows if packed else block_formats.decode_e4m3_rows
    return rows(stored.codes, stored.scale, numerics.dtype)


def bytes_per_token(config: ModelConfig, numerics: Numerics = RUNTIME) -> float:
    """Bytes that one more token of context costs, from the tree itself: 890 at the published
    sizes."""
    tree = abstract(config, CacheSizes(slots=1, blocks=1), numerics)
    return tree_bytes((tree.main, tree.index)) / CACHE_BLOCK_TOKENS


def bytes_per_slot(config: ModelConfig, rollback: int = 6) -> int:
    """Bytes of bounded state per sequence: rings of window keys, pair state, recent tokens."""
    tree = abstract(config, CacheSizes(slots=1, blocks=1, rollback=rollback), RUNTIME)
    return tree_bytes((tree.window, tree.pair_state, tree.recent_tokens, tree.draft_window))


def tree_bytes(tree: object) -> int:
    """Bytes of all leaves of a tree of arrays or abstract arrays."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
