"""The parameter table: one row per leaf of the parameter tree (model.md 11).

A row, a TensorSpec, says where a leaf lives in the tree, what the checkpoint calls the tensors
stacked in it, their shape, stored dtype, logical axes and initialiser. The abstract tree, the
loader, the key check, the writer and random weights are all read from this table.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax.numpy as jnp

from dsinfer_jax.config import QUANTISATION_BLOCK, ModelConfig

# stored dtype -> dtype in memory, of equal width: loading and saving never convert
MEMORY_DTYPES = {
    "BF16": jnp.bfloat16,
    "F32": jnp.float32,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E8M0": jnp.uint8,  # exponent bytes
    "I8": jnp.uint8,  # two e2m1 codes, the even column in the low nibble
    "derived int32": jnp.int32,  # not in the checkpoint: computed from the tokenizer
    "derived uint32": jnp.uint32,
}
QUANTISED_DTYPES = {"F8_E4M3", "I8", "F8_E8M0"}  # codes and their scales


@dataclass(frozen=True)
class TensorSpec:
    """One row of the parameter table: a leaf of the tree, the checkpoint tensors stacked in it."""

    path: tuple[str | int, ...]  # field names (and tuple positions) from Params down
    name: str  # checkpoint name with {layer} and {expert} left open; "" for derived leaves
    shape: tuple[int, ...]  # of one tensor
    dtype: str  # stored dtype, a key of MEMORY_DTYPES
    axes: tuple[str | None, ...]  # logical axis of each dimension of `shape`
    layers: tuple[int, ...] | None = None  # stacked over these layers, or not stacked
    experts: int | None = None  # then stacked over this many experts
    init: str = "normal"  # how `init` fills it

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        layers = () if self.layers is None else (len(self.layers),)
        experts = () if self.experts is None else (self.experts,)
        return layers + experts + self.shape

    @property
    def stacked_axes(self) -> tuple[str | None, ...]:
        layers = () if self.layers is None else ("layers",)
        experts = () if self.experts is None else ("experts",)
        return layers + experts + self.axes

    @property
    def dotted(self) -> str:
        """The path as one word, such as `layers.attention.wq_a.scale`."""
        return ".".join(map(str, self.path))

    @property
    def is_of_quantised_matrix(self) -> bool:
        """Codes or scales [..., outputs, inputs] of a matrix that rows are multiplied by."""
        return self.dtype in QUANTISED_DTYPES and "engram_rows" not in self.axes

    @property
    def nbytes(self) -> int:
        """Of the stacked leaf."""
        return math.prod(self.stacked_shape) * MEMORY_DTYPES[self.dtype].dtype.itemsize

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Of the tensors in the stack, in order."""
        stack = self.stacked_shape[: len(self.stacked_shape) - len(self.shape)]
        return product(*map(range, stack))

    def tensor(self, position: tuple[int, ...]) -> str:
        """Checkpoint name of the tensor at a position of the stack."""
        values = {}
        if self.layers is not None:
            values["layer"] = self.layers[position[0]]
        if self.experts is not None:
            values["expert"] = position[-1]
        return self.name.format(**values)

    def tensors(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """(position in the stacked leaf, checkpoint name) of every tensor of this leaf."""
        if self.name:
            for position in self.positions():
                yield position, self.tensor(position)


def parameter_table(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Every leaf of the tree for this configuration, in the order of model.md 11.1."""
    return (
        *_global_specs(config),
        *_layer_specs(
            config, "layers.{layer}", (), range(config.num_hidden_layers), config.n_routed_experts
        ),
        *_sparse_specs(config),
        *_engram_specs(config),
        *_draft_specs(config),
    )


def _global_specs(config: ModelConfig) -> Iterator[TensorSpec]:
    vocab, hidden, streams = config.vocab_size, config.hidden_size, config.hc_mult
    yield TensorSpec(
        ("embed",), "embed.weight", (vocab, hidden), "BF16", ("vocab", "hidden"), init="embedding"
    )
    yield TensorSpec(("norm",), "norm.weight", (hidden,), "BF16", ("hidden",), init="norm")
    yield TensorSpec(("head",), "head.weight", (vocab, hidden), "BF16", ("vocab", "hidden"))
    for marker in ("image_start", "image_end", "image_newline"):
        yield TensorSpec((marker,), marker, (hidden,), "BF16", ("hidden",), init="embedding")
    if not config.hc_shifted:
        for field, shape in (
            ("fn", (streams, streams * hidden)),
            ("base", (streams,)),
            ("scale", (1,)),
        ):
            yield TensorSpec(
                ("head_mix", field),
                f"hc_head_{field}",
                shape,
                "F32",
                (None,) * len(shape),
                init=f"hc_{field}",
            )


def _e4m3(
    path: tuple[str | int, ...],
    name: str,
    shape: tuple[int, int],
    axes: tuple[str | None, str | None],
    **stack: Any,
) -> Iterator[TensorSpec]:
    """An e4m3 matrix [out, in] and its ue8m0 scales of 32 x 32 blocks."""
    blocks = (-(-shape[0] // QUANTISATION_BLOCK), -(-shape[1] // QUANTISATION_BLOCK))
    yield TensorSpec((*path, "weight"), f"{name}.weight", shape, "F8_E4M3", axes, **stack)
    yield TensorSpec((*path, "scale"), f"{name}.scale", blocks, "F8_E8M0", axes, **stack)


def _e2m1(
    path: tuple[str | int, ...],
    name: str,
    shape: tuple[int, int],
    axes: tuple[str, str],
    **stack: Any,
) -> Iterator[TensorSpec]:
    """A packed e2m1 matrix [out, in / 2] and its ue8m0 scales per output row and 32 inputs."""
    rows, columns = shape
    scales = (rows, columns // QUANTISATION_BLOCK)
    yield TensorSpec((*path, "weight"), f"{name}.weight", (rows, columns // 2), "I8", axes, **stack)
    yield TensorSpec((*path, "scale"), f"{name}.scale", scales, "F8_E8M0", axes, **stack)


def _layer_specs(
    config: ModelConfig, prefix: str, path: tuple[str, ...], layers: range, experts: int
) -> Iterator[TensorSpec]:
    """What every backbone layer has; draft stages are such layers under another prefix."""
    stack: dict[str, Any] = {"layers": tuple(layers)}
    hidden, heads, head_dim = config.hidden_size, config.num_attention_heads, config.head_dim
    q_rank, o_rank = config.q_lora_rank, config.o_groups * config.o_lora_rank
    width, mixes = config.moe_intermediate_size, config.mixes
    layer = (*path, "layers")

    for norm in ("attn_norm", "ffn_norm"):
        yield TensorSpec(
            (*layer, norm),
            f"{prefix}.{norm}.weight",
            (hidden,),
            "BF16",
            ("hidden",),
            init="norm",
            **stack,
        )
    for side in ("hc_attn", "hc_ffn"):
        for field, shape in (
            ("fn", (mixes, config.hc_mult * hidden)),
            ("base", (mixes,)),
            ("scale", (3,)),
        ):
            yield TensorSpec(
                (*layer, side, field),
                f"{prefix}.{side}_{field}",
                shape,
                "F32",
                (None,) * len(shape),
                init=f"hc_{field}",
                **stack,
            )

    attention = (*layer, "attention")
    attn = f"{prefix}.attn"
    yield TensorSpec(
        (*attention, "attn_sink"),
        f"{attn}.attn_sink",
        (heads,),
        "F32",
        ("heads",),
        init="sink",
        **stack,
    )
    yield from _e4m3(
        (*attention, "wq_a"), f"{attn}.wq_a", (q_rank, hidden), (None, "hidden"), **stack
    )
    yield TensorSpec(
        (*attention, "q_norm"),
        f"{attn}.q_norm.weight",
        (q_rank,),
        "BF16",
        (None,),
        init="norm",
        **stack,
    )
    yield from _e4m3(
        (*attention, "wq_b"), f"{attn}.wq_b", (heads * head_dim, q_rank), ("heads", None), **stack
    )
    yield from _e4m3(
        (*attention, "wkv"), f"{attn}.wkv", (head_dim, hidden), (None, "hidden"), **stack
    )
    yield TensorSpec(
        (*attention, "kv_norm"),
        f"{attn}.kv_norm.weight",
        (head_dim,),
        "BF16",
        (None,),
        init="norm",
        **stack,
    )
    group_width = heads // config.o_groups * head_dim
    yield from _e4m3(
        (*attention, "wo_a"), f"{attn}.wo_a", (o_rank, group_width), ("heads", None), **stack
    )
    yield from _e4m3(
        (*attention, "wo_b"), f"{attn}.wo_b", (hidden, o_rank), ("hidden", "heads"), **stack
    )

    gate = (*layer, "gate")
    yield TensorSpec(
        (*gate, "weight"),
        f"{prefix}.ffn.gate.weight",
        (experts, hidden),
        "BF16",
        (None, "hidden"),
        **stack,
    )
    for bias in ("bias", "bias_vl"):
        yield TensorSpec(
            (*gate, bias),
            f"{prefix}.ffn.gate.{bias}",
            (experts,),
            "F32",
            (None,),
            init="gate_bias",
            **stack,
        )

    matrices = (
        ("w1", (width, hidden), ("ffn", "hidden")),
        ("w3", (width, hidden), ("ffn", "hidden")),
        ("w2", (hidden, width), ("hidden", "ffn")),
    )
    for matrix, shape, axes in matrices:
        yield from _e2m1(
            (*path, "experts", matrix),
            f"{prefix}.ffn.experts.{{expert}}.{matrix}",
            shape,
            axes,
            experts=experts,
            **stack,
        )
    if config.n_shared_experts:
        shared_width = config.n_shared_experts * width
        for matrix, _, axes in matrices:
            wide = (hidden, shared_width) if matrix == "w2" else (shared_width, hidden)
            yield from _e4m3(
                (*layer, "shared_expert", matrix),
                f"{prefix}.ffn.shared_experts.{matrix}",
                wide,
                axes,
                **stack,
            )


def _sparse_specs(config: ModelConfig) -> Iterator[TensorSpec]:
    """Compressors, index keys and indexers, each stacked over the layers that own one."""
    hidden, head_dim, index_dim = config.hidden_size, config.head_dim, config.index_head_dim
    attn = "layers.{layer}.attn"
    kv_sources = config.kv_source_layer_ids
    gated = config.kv_sources(2)
    stack: dict[str, Any] = {"layers": kv_sources}
    if kv_sources:
        shape = (head_dim, hidden)
        compressor = f"{attn}.compressor"
        yield TensorSpec(
            ("compressors", "wkv"),
            f"{compressor}.wkv.weight",
            shape,
            "BF16",
            (None, "hidden"),
            **stack,
        )
        if gated:
            yield TensorSpec(
                ("compressors", "wgate"),
                f"{compressor}.wgate.weight",
                shape,
                "BF16",
                (None, "hidden"),
                gated,
            )
        yield TensorSpec(
            ("compressors", "norm"),
            f"{compressor}.norm.weight",
            (head_dim,),
            "BF16",
            (None,),
            init="norm",
            **stack,
        )
    if config.index_k_source_layer_ids:
        stack = {"layers": config.index_k_source_layer_ids}
        yield TensorSpec(
            ("index_keys", "wk"),
            f"{attn}.indexer.wk.weight",
            (index_dim, head_dim),
            "BF16",
            (None, None),
            **stack,
        )
        yield TensorSpec(
            ("index_keys", "k_norm"),
            f"{attn}.indexer.k_norm.weight",
            (index_dim,),
            "BF16",
            (None,),
            init="norm",
            **stack,
        )
    if config.index_source_layer_ids:
        stack = {"layers": config.index_source_layer_ids}
        heads = config.index_n_heads
        yield from _e4m3(
            ("indexers", "wq_b"),
            f"{attn}.indexer.wq_b",
            (heads * index_dim, config.q_lora_rank),
            (None, None),
            **stack,
        )
        yield TensorSpec(
            ("indexers", "weights_proj"),
            f"{attn}.indexer.weights_proj.weight",
            (heads, hidden),
            "BF16",
            (None, "hidden"),
            **stack,
        )


def _engram_specs(config: ModelConfig) -> Iterator[TensorSpec]:
    engram = config.engram
    if engram is None:
        return
    hidden, streams, width = config.hidden_size, config.hc_mult, engram.head_dim
    for position, (layer, rows) in enumerate(zip(engram.layer_ids, engram.table_rows, strict=True)):
        path = ("engrams", position)
        name = f"layers.{layer}.engram"
        axes = ("engram_rows", None)
        yield TensorSpec(
            (*path, "embed", "weight"),
            f"{name}.embed.weight",
            (rows, width),
            "F8_E4M3",
            axes,
            init="embedding",
        )
        yield TensorSpec(
            (*path, "embed", "scale"),
            f"{name}.embed.scale",
            (rows, width // QUANTISATION_BLOCK),
            "F8_E8M0",
            axes,
            init="embedding",
        )
        yield from _e4m3(
            (*path, "wkv"),
            f"{name}.wkv",
            ((streams + 1) * hidden, engram.columns * width),
            ("hidden", None),
        )
        for weight in ("q_weight", "k_weight"):
            yield TensorSpec(
                (*path, weight),
                f"{name}.{weight}",
                (streams, hidden),
                "BF16",
                (None, "hidden"),
                init="norm",
            )
    yield TensorSpec(("hashes", "token_map"), "", (config.vocab_size,), "derived int32", (None,))
    yield TensorSpec(("hashes", "pad_id"), "", (), "derived int32", ())
    multipliers = (len(engram.layer_ids), engram.max_ngram_size, 4)
    yield TensorSpec(("hashes", "multipliers"), "", multipliers, "derived uint32", (None,) * 3)


def _draft_specs(config: ModelConfig) -> Iterator[TensorSpec]:
    draft = config.draft
    if draft is None:
        return
    hidden, vocab, rank = config.hidden_size, config.vocab_size, draft.markov_rank
    yield from _layer_specs(config, "mtp.{layer}", ("draft",), range(draft.layers), draft.experts)
    first, last = "mtp.0", f"mtp.{draft.layers - 1}"
    targets = len(draft.target_layer_ids)
    yield from _e4m3(
        ("draft", "main_proj"), f"{first}.main_proj", (hidden, targets * hidden), ("hidden", None)
    )
    yield TensorSpec(
        ("draft", "main_norm"),
        f"{first}.main_norm.weight",
        (hidden,),
        "BF16",
        ("hidden",),
        init="norm",
    )
    yield TensorSpec(
        ("draft", "norm"), f"{last}.norm.weight", (hidden,), "BF16", ("hidden",), init="norm"
    )
    for field, part in (("markov_embed", "embed"), ("markov_head", "head")):
        yield TensorSpec(
            ("draft", field),
            f"{last}.markov_head.{part}.weight",
            (vocab, rank),
            "BF16",
            ("vocab", None),
        )
    yield TensorSpec(
        ("draft", "confidence"),
        f"{last}.confidence_head.proj.weight",
        (1, hidden + rank),
        "BF16",
        (None, None),
    )
