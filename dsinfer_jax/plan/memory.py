"""Bytes of every part on one device, and how many tokens fit beside them."""

from dataclasses import dataclass

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.mesh.rules import mesh_axes
from dsinfer_jax.model import cache
from dsinfer_jax.model.cache import CacheSizes
from dsinfer_jax.model.numerics import RUNTIME
from dsinfer_jax.model.parameter_table import TensorSpec, parameter_table
from dsinfer_jax.plan.collectives import expert_row_bytes
from dsinfer_jax.plan.load import Load
from dsinfer_jax.plan.sizes import PARTS, part_of, stored_bytes

_F32, _BF16 = 4, 2


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device.

    Attributes:
        weights: by part of the model.
        slots: bounded state of all sequences of the rank, by kind of cache.
        block: one block of 128 tokens, by kind of cache.
        temporaries: an estimate of what a step needs besides.
        usable: what there is.
        blocks_wanted: blocks that the wished requests need.
    """

    weights: dict[str, int]
    slots: dict[str, int]
    block: dict[str, int]
    temporaries: int
    usable: int
    blocks_wanted: int

    @property
    def fixed(self) -> int:
        """All but the blocks."""
        return sum(self.weights.values()) + sum(self.slots.values()) + self.temporaries

    @property
    def blocks(self) -> int:
        """Blocks that fit."""
        return max(0, (self.usable - self.fixed) // sum(self.block.values()))

    @property
    def tokens(self) -> int:
        """Tokens whose compressed keys fit."""
        return self.blocks * CACHE_BLOCK_TOKENS

    @property
    def needed(self) -> int:
        """Bytes for what is wished."""
        return self.fixed + self.blocks_wanted * sum(self.block.values())

    @property
    def fits(self) -> bool:
        return self.needed <= self.usable


def device_memory(config: ModelConfig, load: Load, usable: int) -> DeviceMemory:
    """Memory of one device in a phase.

    Args:
        usable: bytes that may be used.
    """
    weights = dict.fromkeys(PARTS, 0)
    for spec in parameter_table(config):
        weights[part_of(spec)] += _device_bytes(spec, load)
    return DeviceMemory(
        weights={part: size for part, size in weights.items() if size},
        slots={kind: size * load.slots for kind, size in slot_bytes(config, load.rollback).items()},
        block=block_bytes(config),
        temporaries=temporary_bytes(config, load),
        usable=usable,
        blocks_wanted=load.blocks,
    )


def _device_bytes(spec: TensorSpec, load: Load) -> int:
    """A leaf's share of one device; spread dimensions are padded to equal parts."""
    size = stored_bytes(spec)
    axes = mesh_axes(spec.stacked_axes, load.phase)
    for logical, length, mesh in zip(spec.stacked_axes, spec.stacked_shape, axes, strict=True):
        ranks = load.layout.size(mesh)
        if logical == "experts":
            size = size // length * load.places(length).per_rank
        elif ranks > 1:
            size = size // length * -(-length // ranks)
    return size


def slot_bytes(config: ModelConfig, rollback: int) -> dict[str, int]:
    """Bounded state of one sequence, by kind: sums to `cache.bytes_per_slot`."""
    tree = cache.abstract(config, CacheSizes(slots=1, blocks=1, rollback=rollback), RUNTIME)
    kinds = {
        "window keys": tree.window,
        "pair state": tree.pair_state,
        "recent tokens": tree.recent_tokens,
        "draft keys": tree.draft_window,
    }
    return {kind: cache.tree_bytes(part) for kind, part in kinds.items() if part is not None}


def block_bytes(config: ModelConfig) -> dict[str, int]:
    """One block of 128 tokens, by kind: sums to 128 `cache.bytes_per_token`."""
    tree = cache.abstract(config, CacheSizes(slots=1, blocks=1), RUNTIME)
    return {
        f"{kind} keys, ratio {ratio}": cache.tree_bytes(stored)
        for kind, group in (("compressed", tree.main), ("index", tree.index))
        for ratio, stored in sorted(group.items())
    }


def temporary_bytes(config: ModelConfig, load: Load) -> int:
    """An estimate of the most that is alive at once besides weights and cache.

    The streams before and after a sub-layer with the row between them, and the largest of
    attention, experts and logits. Experts have room for the most rows that the ranks can send to
    one device, because shapes are fixed and no row is dropped. What a compiler really needs, a
    compiled program says.
    """
    rows, hidden = load.rows, config.hidden_size
    streams = rows * hidden * (2 * config.hc_mult + 2) * _BF16
    heads = config.num_attention_heads * config.head_dim
    attention = rows * (heads * (_BF16 + _F32) + 2 * config.o_groups * config.o_lora_rank * _BF16)
    group = load.layout.expert_parallel
    most_to_one = min(
        config.num_experts_per_tok,
        load.places(config.n_routed_experts).per_rank,
    )
    experts = (
        group
        * rows
        * most_to_one
        * (
            expert_row_bytes(config)
            + hidden * _BF16
            + config.moe_intermediate_size
            * (2 * _BF16 + 1)  # both products, and codes of the hidden
        )
    )
    logits = 2 * load.outputs * config.vocab_size * _F32
    return streams + max(attention, experts, logits)
