"""Reading `config.json` into a ModelConfig, and the rules it must obey (model.md 1.2, 1.3, 1.5).

Each fault is one sentence that names the key, its value and what is allowed.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from dsinfer_jax.config import (
    ARCHITECTURE,
    MODEL_TYPE,
    QUANTISATION_BLOCK,
    ConfigError,
    DraftConfig,
    EngramConfig,
    ModelConfig,
    RopeScaling,
    nearest_source,
)

_REQUIRED_VALUES: dict[str, dict[str, Any]] = {
    "": {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "dtype": "bfloat16"},
    "quantization_config": {
        "quant_method": "fp8",
        "expert_dtype": "fp4",
        "activation_scheme": "dynamic",
        "weight_block_size": [QUANTISATION_BLOCK, QUANTISATION_BLOCK],
        "scale_fmt": "ue8m0",
    },
    "text_config": {
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
    },
}
_MISSING = object()


class _Section:
    """Typed access to one JSON object; every fault names the full key."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self._values = values
        self._prefix = f"{name}." if name else ""

    def fault(self, key: str, value: Any, allowed: str) -> ConfigError:
        shown = "missing" if value is _MISSING else repr(value)
        return ConfigError(f"{self._prefix}{key} is {shown}; it must be {allowed}")

    def get(self, key: str, default: Any = _MISSING) -> Any:
        return self._values.get(key, default)

    def exactly(self, key: str, required: Any) -> None:
        value = self.get(key)
        if value != required or isinstance(value, bool) != isinstance(required, bool):
            raise self.fault(key, value, repr(required))

    def integer(self, key: str, minimum: int = 1, default: Any = _MISSING) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.fault(key, value, f"an integer of at least {minimum}")
        return value

    def optional_integer(self, key: str, minimum: int = 0) -> int | None:
        return None if self.get(key, None) is None else self.integer(key, minimum)

    def number(self, key: str) -> float:
        value = self.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < inf:
            raise self.fault(key, value, "a finite number above 0")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, value, "true or false")
        return value

    def integers(self, key: str, default: Any = _MISSING) -> tuple[int, ...]:
        value = self.get(key, default)
        if not isinstance(value, (list, tuple)) or any(
            not isinstance(item, int) or isinstance(item, bool) for item in value
        ):
            raise self.fault(key, value, "a list of integers")
        return tuple(value)

    def section(self, key: str) -> "_Section":
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.fault(key, value, "a JSON object")
        return _Section(value, f"{self._prefix}{key}")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Parse the published layout. Raises ConfigError on a missing or ill-typed value."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"config.json holds a {type(values).__name__}; it must be a JSON object")
    top = _Section(values, "")
    for name, required in _REQUIRED_VALUES.items():
        section = top.section(name) if name else top
        for key, value in required.items():
            section.exactly(key, value)
    vision = top.section("vision_config")
    for key in ("hidden_size", "downsample_ratio"):
        vision.integer(key)
    compatibility = top.get("tokenizer_compatibility", "release")
    if compatibility not in ("release", "native"):
        raise top.fault("tokenizer_compatibility", compatibility, "'release' or 'native'")

    text = top.section("text_config")
    kv_sources = text.integers("kv_source_layer_ids")
    has_candidates = text.get("candidate_source_layer_id", None) is not None
    return ModelConfig(
        vocab_size=text.integer("vocab_size"),
        hidden_size=text.integer("hidden_size"),
        num_hidden_layers=text.integer("num_hidden_layers"),
        num_attention_heads=text.integer("num_attention_heads"),
        head_dim=text.integer("head_dim"),
        qk_rope_head_dim=text.integer("qk_rope_head_dim", minimum=2),
        q_lora_rank=text.integer("q_lora_rank"),
        o_lora_rank=text.integer("o_lora_rank"),
        o_groups=text.integer("o_groups"),
        rms_norm_eps=text.number("rms_norm_eps"),
        swiglu_limit=text.number("swiglu_limit"),
        max_position_embeddings=text.integer("max_position_embeddings"),
        sliding_window=text.integer("sliding_window"),
        rope_theta=text.number("rope_theta"),
        compress_rope_theta=text.number("compress_rope_theta"),
        rope_scaling=_read_rope_scaling(text),
        compress_ratios=text.integers("compress_ratios"),
        kv_source_layer_ids=kv_sources,
        index_source_layer_ids=text.integers("index_source_layer_ids"),
        index_k_source_layer_ids=text.integers("index_k_source_layer_ids", kv_sources),
        index_n_heads=text.integer("index_n_heads"),
        index_head_dim=text.integer("index_head_dim"),
        index_topk=text.integer("index_topk"),
        candidate_source_layer_id=text.optional_integer("candidate_source_layer_id"),
        candidate_topk_blocks=text.integer("candidate_topk_blocks") if has_candidates else 0,
        candidate_block_size=text.integer("candidate_block_size") if has_candidates else 1,
        hc_mult=text.integer("hc_mult"),
        hc_eps=text.number("hc_eps"),
        hc_sinkhorn_iters=text.integer("hc_sinkhorn_iters"),
        hc_shifted=text.boolean("hc_shifted", default=True),
        use_fp4_sparse_kv=text.boolean("use_fp4_sparse_kv", default=True),
        moe_intermediate_size=text.integer("moe_intermediate_size"),
        n_routed_experts=text.integer("n_routed_experts"),
        n_shared_experts=text.integer("n_shared_experts", minimum=0),
        num_experts_per_tok=text.integer("num_experts_per_tok"),
        routed_scaling_factor=text.number("routed_scaling_factor"),
        bos_token_id=top.integer("bos_token_id", minimum=0),
        eos_token_id=top.integer("eos_token_id", minimum=0),
        pad_token_id=top.integer("pad_token_id", minimum=0),
        image_token_id=top.optional_integer("image_token_id"),
        engram=_read_engram(text),
        draft=_read_draft(text),
        tokenizer_compatibility=compatibility,
        raw=values,
    )


def _read_rope_scaling(text: _Section) -> RopeScaling | None:
    if text.get("rope_scaling", None) is None:
        return None
    scaling = text.section("rope_scaling")
    kind = scaling.get("type", scaling.get("rope_type", "yarn"))
    if kind != "yarn":
        raise scaling.fault("type", kind, "'yarn'")
    return RopeScaling(
        original_max_position_embeddings=scaling.integer("original_max_position_embeddings"),
        factor=scaling.number("factor"),
        beta_fast=scaling.number("beta_fast"),
        beta_slow=scaling.number("beta_slow"),
    )


def _read_engram(text: _Section) -> EngramConfig | None:
    layer_ids = text.integers("engram_layer_ids", ())
    if not layer_ids:
        return None
    compressed = text.get("engram_compressed_vocab_size", None)
    if compressed is not None:
        compressed = text.integer("engram_compressed_vocab_size")
    engram = EngramConfig(
        layer_ids=layer_ids,
        max_ngram_size=text.integer("engram_max_ngram_size", minimum=2),
        vocab_size=text.integer("engram_vocab_size", minimum=2),
        heads=text.integer("engram_n_heads"),
        head_dim=text.integer("engram_head_dim"),
        pad_token_id=text.integer("engram_pad_token_id", minimum=0),
        compressed_vocab_size=compressed,
    )
    stated = text.integers("engram_num_embeddings", engram.table_rows)
    if stated != engram.table_rows:
        raise text.fault(
            "engram_num_embeddings",
            list(stated),
            f"{list(engram.table_rows)}, the sums of the hash primes",
        )
    return engram


def _read_draft(text: _Section) -> DraftConfig | None:
    layers = text.integer("num_nextn_predict_layers", minimum=0, default=0)
    if layers == 0:
        return None
    if text.boolean("dspark_target_attn_input", default=True) is not True:
        raise text.fault("dspark_target_attn_input", False, "true")
    return DraftConfig(
        layers=layers,
        block_size=text.integer("dspark_block_size"),
        noise_token_id=text.integer("dspark_noise_token_id", minimum=0),
        target_layer_ids=text.integers("dspark_target_layer_ids"),
        markov_rank=text.integer("dspark_markov_rank"),
        experts=text.integer("dspark_n_routed_experts"),
        experts_per_token=text.integer("dspark_num_experts_per_tok"),
    )


def check_rules(config: ModelConfig) -> None:
    """Refuse a configuration that breaks a rule of model.md 1.5 that is mathematics."""
    for rule in (
        _check_ratios,
        _check_sources,
        _check_sharing,
        _check_candidates,
        _check_shapes,
        _check_engram,
        _check_draft,
    ):
        rule(config)


def _require(condition: bool, key: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"text_config.{key} is {value!r}; {allowed}")


def _check_ratios(config: ModelConfig) -> None:
    ratios = config.compress_ratios
    layers, drafts = config.num_hidden_layers, config.draft.layers if config.draft else 0
    _require(
        set(ratios) <= {0, 1, 2},
        "compress_ratios",
        list(ratios),
        "only 0, 1 and 2 are allowed (V1)",
    )
    _require(
        len(ratios) == layers + drafts,
        "compress_ratios",
        list(ratios),
        f"it must have one entry per backbone layer and per draft layer, {layers} + {drafts} (V2)",
    )
    _require(
        not any(ratios[layers:]),
        "compress_ratios",
        list(ratios),
        "draft layers share nothing, so their ratio must be 0 (V7)",
    )


def _source_lists(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {
        "kv_source_layer_ids": config.kv_source_layer_ids,
        "index_k_source_layer_ids": config.index_k_source_layer_ids,
        "index_source_layer_ids": config.index_source_layer_ids,
    }


def _check_sources(config: ModelConfig) -> None:
    compressed = [
        layer for layer in range(config.num_hidden_layers) if config.compress_ratios[layer] > 0
    ]
    for key, sources in _source_lists(config).items():
        _require(
            list(sources) == sorted(set(sources)),
            key,
            list(sources),
            "it must be ascending without repeats: a consumer has one nearest source (V3)",
        )
        stray = [layer for layer in sources if layer not in compressed]
        _require(
            not stray,
            key,
            list(sources),
            f"layers {stray} are not backbone layers with a compression ratio above 0 (V5, V7)",
        )
        orphans = [layer for layer in compressed if not sources or layer < sources[0]]
        _require(
            not orphans, key, list(sources), f"layers {orphans} have no source before them (V3)"
        )


def _check_sharing(config: ModelConfig) -> None:
    lists = _source_lists(config)
    for fine, coarse in (
        ("index_k_source_layer_ids", "kv_source_layer_ids"),
        ("index_source_layer_ids", "index_k_source_layer_ids"),
    ):
        missing = [layer for layer in lists[coarse] if layer not in lists[fine]]
        _require(
            not missing,
            fine,
            list(lists[fine]),
            f"it must also hold {missing} of {coarse}: a finer map refines a coarser one (V4)",
        )
    split = config.first_consumer_layer
    if split < config.num_hidden_layers:
        _require(
            nearest_source(config.kv_source_layer_ids, split) == split,
            "kv_source_layer_ids",
            list(config.kv_source_layer_ids),
            f"it must hold {split}, the first layer of ratio 1: no sharing across the split (V6)",
        )
    for key, sources in lists.items():
        for layer in range(config.num_hidden_layers):
            ratio, source = config.compress_ratios[layer], nearest_source(sources, layer)
            _require(
                ratio == 0 or config.compress_ratios[source] == ratio,
                key,
                list(sources),
                f"layer {layer} has ratio {ratio} and its source {source} has ratio "
                f"{config.compress_ratios[source]}; they must be equal (V5)",
            )


def _check_candidates(config: ModelConfig) -> None:
    source = config.candidate_source_layer_id
    if source is None:
        return
    blocks, size = config.candidate_topk_blocks, config.candidate_block_size
    _require(
        source in config.index_source_layer_ids,
        "candidate_source_layer_id",
        source,
        f"it must be one of index_source_layer_ids {list(config.index_source_layer_ids)} (V8)",
    )
    _require(
        blocks % 8 == 0, "candidate_topk_blocks", blocks, "it must be a positive multiple of 8 (V8)"
    )
    _require(1 <= size <= 16, "candidate_block_size", size, "it must lie in 1..16 (V8)")
    _require(
        blocks * size >= config.index_topk,
        "candidate_topk_blocks",
        blocks,
        f"times candidate_block_size {size} it must reach index_topk {config.index_topk} (V8)",
    )
    ratio = config.compress_ratios[source]
    for layer in config.index_source_layer_ids:
        _require(
            layer < source or config.compress_ratios[layer] == ratio,
            "candidate_source_layer_id",
            source,
            f"index source {layer} after it must have its ratio {ratio} (V8)",
        )
    _require(
        config.max_position_embeddings // ratio >= blocks * size,
        "max_position_embeddings",
        config.max_position_embeddings,
        f"divided by ratio {ratio} it must reach the {blocks} x {size} candidate keys (V17)",
    )


def _check_shapes(config: ModelConfig) -> None:
    _require(
        config.num_attention_heads % config.o_groups == 0,
        "o_groups",
        config.o_groups,
        f"it must divide num_attention_heads {config.num_attention_heads} (V12)",
    )
    rotary = config.qk_rope_head_dim
    _require(rotary % 2 == 0, "qk_rope_head_dim", rotary, "it must be even: pairs are rotated")
    for key in ("head_dim", "index_head_dim"):
        width = getattr(config, key)
        allowed = f"it must be larger than qk_rope_head_dim {rotary} (V12)"
        if key == "index_head_dim":
            allowed = f"it must be at least qk_rope_head_dim {rotary} (V10)"
        _require(width > rotary or (key != "head_dim" and width == rotary), key, width, allowed)
    grouped_rank = config.o_groups * config.o_lora_rank
    for key, width in (
        ("hidden_size", config.hidden_size),
        ("head_dim", config.head_dim),
        ("index_head_dim", config.index_head_dim),
        ("q_lora_rank", config.q_lora_rank),
        ("o_lora_rank", grouped_rank),
        ("moe_intermediate_size", config.moe_intermediate_size),
    ):
        _require(
            width % QUANTISATION_BLOCK == 0,
            key,
            width,
            f"its quantised width {width} must be a multiple of {QUANTISATION_BLOCK}",
        )
    _require(
        config.num_experts_per_tok <= config.n_routed_experts,
        "num_experts_per_tok",
        config.num_experts_per_tok,
        f"it must not exceed n_routed_experts {config.n_routed_experts}",
    )


def _check_engram(config: ModelConfig) -> None:
    engram = config.engram
    if engram is None:
        return
    _require(
        engram.head_dim % QUANTISATION_BLOCK == 0,
        "engram_head_dim",
        engram.head_dim,
        f"it must be a multiple of {QUANTISATION_BLOCK} (V13)",
    )
    inside = all(0 <= layer < config.num_hidden_layers for layer in engram.layer_ids)
    _require(
        inside and list(engram.layer_ids) == sorted(set(engram.layer_ids)),
        "engram_layer_ids",
        list(engram.layer_ids),
        f"it must be ascending backbone layers below {config.num_hidden_layers} (V13)",
    )
    split = config.first_consumer_layer
    _require(
        engram.layer_ids[-1] < split,
        "engram_layer_ids",
        list(engram.layer_ids),
        f"all must lie before the first consumer layer {split} (V14)",
    )
    _require(
        engram.pad_token_id == config.pad_token_id,
        "engram_pad_token_id",
        engram.pad_token_id,
        f"it must equal pad_token_id {config.pad_token_id} (V15)",
    )


def _check_draft(config: ModelConfig) -> None:
    draft = config.draft
    if draft is None:
        return
    targets = draft.target_layer_ids
    _require(
        bool(targets) and all(0 <= layer < config.num_hidden_layers for layer in targets),
        "dspark_target_layer_ids",
        list(targets),
        f"it must name backbone layers below {config.num_hidden_layers}",
    )
    split = config.first_consumer_layer
    _require(
        len({layer < split for layer in targets}) == 1,
        "dspark_target_layer_ids",
        list(targets),
        f"all must lie on one side of the first consumer layer {split} (V14)",
    )
    _require(
        draft.experts_per_token <= draft.experts,
        "dspark_num_experts_per_tok",
        draft.experts_per_token,
        f"it must not exceed dspark_n_routed_experts {draft.experts}",
    )
    _require(
        draft.noise_token_id < config.vocab_size,
        "dspark_noise_token_id",
        draft.noise_token_id,
        f"it must lie below vocab_size {config.vocab_size}",
    )
