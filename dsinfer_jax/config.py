"""The model's configuration: frozen dataclasses read from a Hugging Face `config.json`.

`ModelConfig.from_pretrained(folder)` reads the published layout (model.md 1), checks every rule
that is mathematics, and derives the layer table. Limits of particular GPU kernels (V9, V10, V11)
are not checked here.
This module imports the standard library only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_TYPE = "deepseek_v41"
QUANTISATION_BLOCK = 32  # rows and columns of one e4m3 weight scale, model.md 1.3
CACHE_BLOCK_TOKENS = 128  # original tokens per block of compressed keys, model.md 12.3


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names key, value and what is allowed."""


@dataclass(frozen=True)
class RopeScaling:
    """Static YaRN for the rotations of layers with compressed keys (model.md 4.3)."""

    original_max_position_embeddings: int
    factor: float
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class EngramConfig:
    """Hashed n-gram memory (model.md 8)."""

    layer_ids: tuple[int, ...]
    max_ngram_size: int
    vocab_size: int  # requested rows per (order, head); each becomes the next unused prime
    heads: int  # per order
    head_dim: int
    pad_token_id: int  # raw id
    compressed_vocab_size: (
        int | None
    )  # of the folded vocabulary; None: take what the tokenizer gives

    @property
    def columns(self) -> int:
        """Rows looked up per token: one per (order, head)."""
        return (self.max_ngram_size - 1) * self.heads

    @cached_property
    def primes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Hash moduli `[engram layer][order - 2][head]`, all distinct (model.md 8.3)."""
        used: set[int] = set()
        layers = []
        for _ in self.layer_ids:
            orders = []
            for _ in range(2, self.max_ngram_size + 1):
                prime = self.vocab_size - 1
                heads = []
                for _ in range(self.heads):
                    prime = _next_unused_prime(prime, used)
                    used.add(prime)
                    heads.append(prime)
                orders.append(tuple(heads))
            layers.append(tuple(orders))
        return tuple(layers)

    @property
    def table_rows(self) -> tuple[int, ...]:
        """Rows of each engram layer's table."""
        return tuple(sum(map(sum, orders)) for orders in self.primes)


@dataclass(frozen=True)
class DraftConfig:
    """DSpark draft block (speculative.md 2.1)."""

    layers: int
    block_size: int
    noise_token_id: int
    target_layer_ids: tuple[int, ...]
    markov_rank: int
    experts: int
    experts_per_token: int


@dataclass(frozen=True)
class LayerSpec:
    """One row of the layer table (model.md 1.6): what a layer owns and reads from others."""

    index: int
    ratio: int  # 0: window only; r > 0: one compressed key per r tokens
    kv_source: int  # layer whose compressed keys this layer attends to
    index_source: int  # layer whose top-k list this layer uses
    index_k_source: int  # layer whose index keys that list is chosen from
    engram: int | None  # number of the layer among the engram layers
    candidates: str  # "source", "restricted" or "" (model.md 6.5)
    consumer: bool  # second half of the producer / consumer split

    @property
    def owns_kv(self) -> bool:
        return self.ratio > 0 and self.kv_source == self.index

    @property
    def owns_index(self) -> bool:
        return self.ratio > 0 and self.index_source == self.index

    @property
    def owns_index_keys(self) -> bool:
        return self.ratio > 0 and self.index_k_source == self.index

    @property
    def plain(self) -> bool:
        """Attends and mixes only: consecutive plain layers are one scanned body."""
        return not (self.owns_kv or self.owns_index or self.engram is not None)


@dataclass(frozen=True)
class ModelConfig:
    """Everything the mathematics needs. Field names follow `text_config`; see model.md 1.2."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    rms_norm_eps: float
    swiglu_limit: float
    max_position_embeddings: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling | None
    compress_ratios: tuple[int, ...]  # backbone layers, then draft layers
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_k_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int | None
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    hc_shifted: bool
    use_fp4_sparse_kv: bool
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int | None
    engram: EngramConfig | None
    draft: DraftConfig | None
    tokenizer_compatibility: str = "release"
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "ModelConfig":
        """Read `folder/config.json`.

        Raises:
            ConfigError: the file is missing or is not JSON, or a value breaks a rule.
        """
        path = Path(folder) / "config.json"
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read ({error.strerror}); "
                "name a checkpoint folder that holds config.json"
            ) from error
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON ({error}); restore the file") from error
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Build from the parsed `config.json`. Raises ConfigError as `from_pretrained` does."""
        from dsinfer_jax.config_rules import check_rules, read_config

        config = read_config(values)
        check_rules(config)
        return config

    @property
    def first_consumer_layer(self) -> int:
        """P of model.md 1.5: first layer of the consumer half; the layer count if there is none."""
        ratios = self.compress_ratios[: self.num_hidden_layers]
        return ratios.index(1) if 1 in ratios else self.num_hidden_layers

    @cached_property
    def layers(self) -> tuple[LayerSpec, ...]:
        """The layer table of the backbone."""
        engrams = self.engram.layer_ids if self.engram else ()
        candidate_source = self.candidate_source_layer_id
        table = []
        for layer, ratio in enumerate(self.compress_ratios[: self.num_hidden_layers]):
            index_source = nearest_source(self.index_source_layer_ids, layer)
            candidates = ""
            if candidate_source is not None and ratio and index_source == layer:
                if layer == candidate_source:
                    candidates = "source"
                elif layer > candidate_source:
                    candidates = "restricted"
            table.append(
                LayerSpec(
                    index=layer,
                    ratio=ratio,
                    kv_source=nearest_source(self.kv_source_layer_ids, layer),
                    index_source=index_source,
                    index_k_source=nearest_source(self.index_k_source_layer_ids, layer),
                    engram=engrams.index(layer) if layer in engrams else None,
                    candidates=candidates,
                    consumer=layer >= self.first_consumer_layer,
                )
            )
        return tuple(table)

    def kv_sources(self, ratio: int) -> tuple[int, ...]:
        """Layers that own compressed keys of this ratio, in order."""
        return tuple(spec.index for spec in self.layers if spec.owns_kv and spec.ratio == ratio)

    @property
    def ratios(self) -> tuple[int, ...]:
        """Compression ratios in use, ascending, without 0."""
        return tuple(r for r in (1, 2) if self.kv_sources(r))

    @property
    def mixes(self) -> int:
        """Coefficients of one hyper-connection: pre, post and the residual matrix."""
        return self.hc_mult * (self.hc_mult + 2)

    def with_overrides(self, **text_config: Any) -> "ModelConfig":
        """The same model with other `text_config` values, checked again."""
        values = dict(self.raw)
        values["text_config"] = {**values["text_config"], **text_config}
        return ModelConfig.from_dict(values)


def nearest_source(sources: tuple[int, ...], layer: int) -> int:
    """The last source at or before `layer`; the layer itself when there is none (model.md 1.5)."""
    return max((source for source in sources if source <= layer), default=layer)


def _next_unused_prime(start: int, used: set[int]) -> int:
    candidate = start + 1
    while candidate in used or not _is_prime(candidate):
        candidate += 1
    return candidate


def _is_prime(number: int) -> bool:
    if number < 2:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True


def published_values() -> dict[str, Any]:
    """The published `config.json` of DeepSeek-V4.1-Flash as a value (model.md 1.1 to 1.3)."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": 129264,
        "quantization_config": {
            "quant_method": "fp8",
            "expert_dtype": "fp4",
            "activation_scheme": "dynamic",
            "weight_block_size": [QUANTISATION_BLOCK, QUANTISATION_BLOCK],
            "scale_fmt": "ue8m0",
        },
        "text_config": {
            "vocab_size": 129280,
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "qk_rope_head_dim": 64,
            "q_lora_rank": 1280,
            "o_lora_rank": 1024,
            "o_groups": 8,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "rms_norm_eps": 1e-20,
            "swiglu_limit": 10.0,
            "tie_word_embeddings": False,
            "max_position_embeddings": 1048576,
            "sliding_window": 128,
            "rope_theta": 10000,
            "compress_rope_theta": 160000,
            "rope_scaling": {
                "type": "yarn",
                "original_max_position_embeddings": 65536,
                "factor": 16,
                "beta_fast": 32,
                "beta_slow": 1,
            },
            "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 0],
            "kv_source_layer_ids": [2, 8, 14, 20],
            "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
            "index_n_heads": 32,
            "index_head_dim": 128,
            "index_topk": 512,
            "candidate_source_layer_id": 20,
            "candidate_topk_blocks": 2048,
            "candidate_block_size": 8,
            "hc_mult": 4,
            "hc_eps": 1e-6,
            "hc_sinkhorn_iters": 20,
            "moe_intermediate_size": 2304,
            "n_routed_experts": 384,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "routed_scaling_factor": 1.5,
            "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "engram_layer_ids": [1, 14],
            "engram_max_ngram_size": 4,
            "engram_vocab_size": 16000000,
            "engram_n_heads": 8,
            "engram_head_dim": 256,
            "engram_pad_token_id": 2,
            "engram_compressed_vocab_size": 99092,
            "engram_num_embeddings": [384006168, 384016682],
            "num_nextn_predict_layers": 3,
            "dspark_block_size": 5,
            "dspark_noise_token_id": 128799,
            "dspark_target_layer_ids": [37, 38, 39],
            "dspark_markov_rank": 256,
            "dspark_n_routed_experts": 128,
            "dspark_num_experts_per_tok": 3,
        },
        "vision_config": {
            "model_type": "deepseek_v41_vision",
            "num_hidden_layers": 32,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "intermediate_size": 2816,
            "patch_size": 14,
            "rope_theta": 10000.0,
            "downsample_ratio": 3,
            "max_image_tokens": 1024,
        },
    }


def v41_flash() -> ModelConfig:
    """The published sizes of DeepSeek-V4.1-Flash, for planning and abstract evaluation."""
    return ModelConfig.from_dict(published_values())


_SMALLEST = {  # table B of model.md 13
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 10,
    "num_attention_heads": 4,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "o_groups": 2,
    "swiglu_limit": 1.0,
    "max_position_embeddings": 4096,
    "sliding_window": 8,
    "compress_rope_theta": 40000,
    "rope_scaling": {
        "type": "yarn",
        "original_max_position_embeddings": 64,
        "factor": 4,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1],
    "kv_source_layer_ids": [2, 4, 6],
    "index_source_layer_ids": [2, 4, 6, 8],
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 16,
    "candidate_source_layer_id": 6,
    "candidate_topk_blocks": 8,
    "candidate_block_size": 8,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "engram_layer_ids": [1, 4],
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_vocab_size": 64,
    "num_nextn_predict_layers": 0,
}

_FORMAT_TRUE = {  # table A of model.md 13: keeps the byte formats of the caches
    "hidden_size": 256,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 64,
    "sliding_window": 16,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 32,
    "candidate_topk_blocks": 64,
    "moe_intermediate_size": 64,
    "engram_head_dim": 128,
}


def tiny(**text_config: Any) -> ModelConfig:
    """The smallest configuration that exercises all mathematics (table B), with overrides."""
    return _published_with(_SMALLEST | text_config)


def tiny_formats(**text_config: Any) -> ModelConfig:
    """A small configuration that keeps the published cache formats (table A), with overrides."""
    return _published_with(_SMALLEST | _FORMAT_TRUE | text_config)


def _published_with(text_config: dict[str, Any]) -> ModelConfig:
    values = published_values()
    values["image_token_id"] = None
    values["text_config"].update(text_config)
    for derived in ("engram_num_embeddings", "engram_compressed_vocab_size"):
        del values["text_config"][derived]
    return ModelConfig.from_dict(values)


__all__ = [
    "ConfigError",
    "DraftConfig",
    "EngramConfig",
    "LayerSpec",
    "ModelConfig",
    "RopeScaling",
    "published_values",
    "tiny",
    "tiny_formats",
    "v41_flash",
]
