"""The parameter tree: what the model's functions are given (model.md 11).

Weights keep their stored formats: e4m3 bytes, packed e2m1 pairs, ue8m0 exponents. Tensors of one
kind are stacked over their layers, so that the tree has few, fat leaves. Names, shapes and dtypes
of the leaves are the rows of `parameter_table`. This module knows no file and no mesh.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import jax
from jax import lax
from jax.tree_util import register_dataclass

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec, parameter_table

Array = jax.Array
Tree = TypeVar("Tree")


@register_dataclass
@dataclass(frozen=True)
class Quantised:
    """A weight in its stored format: e4m3 or packed e2m1 codes, ue8m0 scales of blocks of 32."""

    weight: Array
    scale: Array


@register_dataclass
@dataclass(frozen=True)
class HyperConnectionParams:
    fn: Array  # [layers, mixes, streams * hidden] f32
    base: Array  # [layers, mixes] f32
    scale: Array  # [layers, 3] f32


@register_dataclass
@dataclass(frozen=True)
class AttentionParams:
    attn_sink: Array  # [layers, heads] f32, a logit
    wq_a: Quantised  # [layers, q_rank, hidden]
    q_norm: Array  # [layers, q_rank]
    wq_b: Quantised  # [layers, heads * head_dim, q_rank]
    wkv: Quantised  # [layers, head_dim, hidden]
    kv_norm: Array  # [layers, head_dim]
    wo_a: Quantised  # [layers, groups * o_rank, heads / groups * head_dim]
    wo_b: Quantised  # [layers, hidden, groups * o_rank]


@register_dataclass
@dataclass(frozen=True)
class GateParams:
    weight: Array  # [layers, experts, hidden] bf16
    bias: Array  # [layers, experts] f32
    bias_vl: Array  # [layers, experts] f32, for image rows


@register_dataclass
@dataclass(frozen=True)
class ExpertParams:
    """SwiGLU: routed [layers, experts, out, in / 2] packed e2m1, shared [layers, out, in] e4m3."""

    w1: Quantised  # gate
    w3: Quantised  # up
    w2: Quantised  # down


@register_dataclass
@dataclass(frozen=True)
class LayerParams:
    """What every layer has, stacked over layers, but for the routed experts (Params.experts)."""

    attn_norm: Array  # [layers, hidden]
    ffn_norm: Array  # [layers, hidden]
    hc_attn: HyperConnectionParams
    hc_ffn: HyperConnectionParams
    attention: AttentionParams
    gate: GateParams
    shared_expert: ExpertParams | None


@register_dataclass
@dataclass(frozen=True)
class CompressorParams:
    """Stacked over the layers that own compressed keys; `wgate` over those of ratio 2 only."""

    wkv: Array  # [sources, head_dim, hidden] bf16
    wgate: Array | None  # [ratio-2 sources, head_dim, hidden] bf16
    norm: Array  # [sources, head_dim]


@register_dataclass
@dataclass(frozen=True)
class IndexKeyParams:
    wk: Array  # [sources, index_dim, head_dim] bf16
    k_norm: Array  # [sources, index_dim]


@register_dataclass
@dataclass(frozen=True)
class IndexerParams:
    wq_b: Quantised  # [sources, index_heads * index_dim, q_rank]
    weights_proj: Array  # [sources, index_heads, hidden] bf16


@register_dataclass
@dataclass(frozen=True)
class EngramParams:
    """One engram layer. Not stacked: tables of different layers have different row counts."""

    embed: Quantised  # [rows, width] e4m3, scales [rows, width / 32]
    wkv: Quantised  # [(streams + 1) * hidden, columns * width]
    q_weight: Array  # [streams, hidden] bf16
    k_weight: Array  # [streams, hidden] bf16


@register_dataclass
@dataclass(frozen=True)
class HashParams:
    """Derived from the tokenizer, not stored: folded vocabulary, hash multipliers (model.md 8)."""

    token_map: Array  # [vocab] int32: raw id -> compressed id
    pad_id: Array  # [] int32: compressed id of the pad token
    multipliers: Array  # [engram layers, n-gram size, 4] uint32: 16-bit limbs, lowest first


@register_dataclass
@dataclass(frozen=True)
class HeadMixParams:
    """Collapse of the streams in the non-shifted variant (model.md 3.4)."""

    fn: Array  # [streams, streams * hidden] f32
    base: Array  # [streams] f32
    scale: Array  # [1] f32


@register_dataclass
@dataclass(frozen=True)
class DraftParams:
    """DSpark draft block (speculative.md 4)."""

    layers: LayerParams  # stacked over draft stages
    experts: ExpertParams
    main_proj: Quantised  # [hidden, targets * hidden]
    main_norm: Array  # [hidden]
    norm: Array  # [hidden]
    markov_embed: Array  # [vocab, rank] bf16
    markov_head: Array  # [vocab, rank] bf16
    confidence: Array  # [1, hidden + rank] bf16


@register_dataclass
@dataclass(frozen=True)
class Params:
    embed: Array  # [vocab, hidden] bf16
    norm: Array  # [hidden] bf16
    head: Array  # [vocab, hidden] bf16
    image_start: Array  # [hidden] bf16
    image_end: Array
    image_newline: Array
    layers: LayerParams
    experts: ExpertParams  # routed experts of all layers
    compressors: CompressorParams | None
    index_keys: IndexKeyParams | None
    indexers: IndexerParams | None
    engrams: tuple[EngramParams, ...]
    hashes: HashParams | None
    head_mix: HeadMixParams | None
    draft: DraftParams | None


def at_layer(stacked: Tree, number: Array | int) -> Tree:
    """One layer of a stacked tree; a static number slices, a traced one reads in place."""
    if isinstance(number, int):
        return jax.tree.map(lambda leaf: lax.index_in_dim(leaf, number, keepdims=False), stacked)
    return jax.tree.map(
        lambda leaf: lax.dynamic_index_in_dim(leaf, number, keepdims=False), stacked
    )


def build_tree(config: ModelConfig, leaf: Callable[[TensorSpec], Any]) -> Params:
    """The parameter tree with `leaf(spec)` at the place of every row of the table."""
    nested: dict[str | int, Any] = {}
    for spec in parameter_table(config):
        node = nested
        for key in spec.path[:-1]:
            node = node.setdefault(key, {})
        node[spec.path[-1]] = leaf(spec)
    return _construct(Params, nested)


def _construct(kind: Any, values: Any) -> Any:
    """Turn nested dictionaries into the annotated dataclasses; absent parts become None."""
    if not isinstance(values, dict):
        return values
    if not is_dataclass(kind):  # tuple[EngramParams, ...]
        return tuple(_construct(get_args(kind)[0], values[key]) for key in sorted(values))
    hints = get_type_hints(kind)
    arguments = {}
    for item in fields(kind):
        hint = hints[item.name]
        options = [option for option in get_args(hint) if is_dataclass(option)]
        is_tuple = getattr(hint, "__origin__", None) is tuple
        inner = hint if is_tuple or not options else options[0]
        arguments[item.name] = _construct(inner, values.get(item.name, () if is_tuple else None))
    return kind(**arguments)  # type: ignore[operator]


def leaf_at(params: Params, spec: TensorSpec) -> Any:
    """The leaf of the tree that a row of the table describes."""
    node: Any = params
    for key in spec.path:
        node = node[key] if isinstance(key, int) else getattr(node, key)
    return node


def abstract(
    config: ModelConfig,
    sharding: Callable[[TensorSpec], jax.sharding.Sharding | None] | None = None,
) -> Params:
    """The tree of `jax.ShapeDtypeStruct`s: shapes, dtypes and (optionally) shardings, no memory."""
    return build_tree(
        config,
        lambda spec: jax.ShapeDtypeStruct(
            spec.stacked_shape,
            MEMORY_DTYPES[spec.dtype],
            sharding=sharding(spec) if sharding else None,
        ),
    )
