"""Parameters and bytes of a model by part, read from the parameter table alone."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jax.numpy as jnp

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec, parameter_table

PARTS = (
    "embedding",
    "attention",
    "mixing",
    "shared experts",
    "experts",
    "engram table",
    "engram",
    "draft",
    "draft experts",
    "head",
)
_OF_LAYER = {
    "attention": "attention",
    "attn_norm": "attention",
    "ffn_norm": "attention",
    "hc_attn": "mixing",
    "hc_ffn": "mixing",
    "gate": "shared experts",
    "shared_expert": "shared experts",
}
_OF_FIELD = {
    "embed": "embedding",
    "image_start": "embedding",
    "image_end": "embedding",
    "image_newline": "embedding",
    "norm": "head",
    "head": "head",
    "head_mix": "head",
    "experts": "experts",
    "compressors": "attention",
    "index_keys": "attention",
    "indexers": "attention",
    "hashes": "engram",
}


def part_of(spec: TensorSpec) -> str:
    """Which of PARTS a leaf belongs to."""
    first = str(spec.path[0])
    if first == "layers":
        return _OF_LAYER[str(spec.path[1])]
    if first == "engrams":
        return "engram table" if spec.path[2] == "embed" else "engram"
    if first == "draft":
        return "draft experts" if spec.path[1] == "experts" else "draft"
    return _OF_FIELD[first]


def stored_bytes(spec: TensorSpec) -> int:
    """Bytes of a leaf in its stored format."""
    return math.prod(spec.stacked_shape) * jnp.dtype(MEMORY_DTYPES[spec.dtype]).itemsize


def parameters(spec: TensorSpec) -> int:
    """Weights of a leaf: two to a byte where packed; block scales and derived leaves are none."""
    if spec.dtype == "F8_E8M0" or not spec.name:
        return 0
    return math.prod(spec.stacked_shape) * (2 if spec.dtype == "I8" else 1)


@dataclass(frozen=True)
class PartSize:
    parameters: int
    bytes: int


def sizes_by_part(config: ModelConfig) -> dict[str, PartSize]:
    """Parameters and bytes of every part that the model has, in the order of PARTS."""
    found: dict[str, list[TensorSpec]] = {part: [] for part in PARTS}
    for spec in parameter_table(config):
        found[part_of(spec)].append(spec)
    return {
        part: PartSize(sum(map(parameters, specs)), sum(map(stored_bytes, specs)))
        for part, specs in found.items()
        if specs
    }


def backbone_parameters(config: ModelConfig) -> int:
    """All weights but the engram table and the draft block: 552 G at the published sizes."""
    sizes = sizes_by_part(config)
    other = {"engram table", "draft", "draft experts"}
    return sum(size.parameters for part, size in sizes.items() if part not in other)


def active_parameters(config: ModelConfig, phase: str) -> int:
    """Weights that a token is multiplied with: of decode, or of prefill for a token before the
    kept suffix, which passes the producer half only (model.md 7.1). Tables that are looked up
    (embedding, engram table) and the draft block do not count."""
    return sum(
        round(parameters(spec) * _share_used(spec, config, phase))
        for spec in parameter_table(config)
    )


def _share_used(spec: TensorSpec, config: ModelConfig, phase: str) -> float:
    part = part_of(spec)
    if part in ("embedding", "engram table", "draft", "draft experts"):
        return 0.0
    share = 1.0
    if spec.experts is not None:
        share = config.num_experts_per_tok / spec.experts
    if phase == "prefill":
        if part == "head":
            return 0.0
        share *= producer_share(spec, config)
    return share


def producer_share(spec: TensorSpec, config: ModelConfig) -> float:
    """How much of a leaf all prompt rows pass: its producer layers, and what makes the first
    consumer layer's compressed keys."""
    if spec.layers is None:
        return 1.0
    last = config.first_consumer_layer - (0 if makes_keys(spec) else 1)
    return sum(layer <= last for layer in spec.layers) / len(spec.layers)


def makes_keys(spec: TensorSpec) -> bool:
    """Whether a leaf makes compressed keys or index keys, which every row leaves."""
    return spec.path[0] in ("compressors", "index_keys")


def specs_of(config: ModelConfig, parts: Iterable[str]) -> Iterator[TensorSpec]:
    """The leaves of some parts."""
    wanted = set(parts)
    return (spec for spec in parameter_table(config) if part_of(spec) in wanted)
