"""The configuration: published values, derived tables, and one sentence for every broken rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsinfer_jax.config import (
    ConfigError,
    ModelConfig,
    published_values,
    tiny,
    tiny_formats,
    v41_flash,
)
from dsinfer_jax.model.parameter_table import parameter_table

MISSING = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The published values with one key replaced or removed."""
    values = published_values()
    *sections, key = path.split(".")
    section = values
    for name in sections:
        section = section[name]
    if value is MISSING:
        del section[key]
    else:
        section[key] = value
    return values


def refusal(values: Any) -> str:
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(values)
    message = str(error.value)
    assert "\n" not in message
    return message


REQUIRED_VALUES = [
    ("architectures", ["DeepseekV4ForCausalLM"], "DeepseekV41ForCausalLM"),
    ("model_type", "deepseek_v4", "deepseek_v41"),
    ("dtype", "float16", "bfloat16"),
    ("quantization_config.quant_method", "awq", "fp8"),
    ("quantization_config.expert_dtype", "fp8", "fp4"),
    ("quantization_config.activation_scheme", "static", "dynamic"),
    ("quantization_config.weight_block_size", [128, 128], "[32, 32]"),
    ("quantization_config.scale_fmt", "float32", "ue8m0"),
    ("text_config.num_key_value_heads", 2, "1"),
    ("text_config.hidden_act", "gelu", "silu"),
    ("text_config.attention_bias", True, "False"),
    ("text_config.attention_dropout", 0.1, "0.0"),
    ("text_config.scoring_func", "softmax", "sqrtsoftplus"),
    ("text_config.topk_method", "greedy", "noaux_tc"),
    ("text_config.norm_topk_prob", False, "True"),
    ("text_config.rope_scaling.type", "linear", "yarn"),
    ("text_config.dspark_target_attn_input", False, "true"),
    ("tokenizer_compatibility", "other", "'release' or 'native'"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), REQUIRED_VALUES)
def test_a_required_value_is_named_with_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    message = refusal(changed(key, value))
    assert f"{key} is {value!r}; " in message
    assert allowed in message


BROKEN_RULES = [
    ("V1", "compress_ratios", [0, 0] + [2] * 18 + [3] * 20 + [0, 0, 0], "only 0, 1 and 2"),
    ("V2", "compress_ratios", [0, 0] + [2] * 18 + [1] * 20, "40 + 3"),
    ("V3", "kv_source_layer_ids", [8, 2, 14, 20], "ascending"),
    ("V3", "kv_source_layer_ids", [2, 8, 8, 14, 20], "ascending"),
    ("V3", "kv_source_layer_ids", [8, 14, 20], "[2, 3, 4, 5, 6, 7] have no source"),
    ("V4", "index_source_layer_ids", [2, 14, 20, 24, 28, 32, 36], "must also hold [8]"),
    ("V4", "index_k_source_layer_ids", [2, 8, 14], "must also hold [20]"),
    ("V5", "kv_source_layer_ids", [1, 2, 8, 14, 20], "layers [1]"),
    ("V6", "kv_source_layer_ids", [2, 8, 14], "it must hold 20"),
    ("V7", "compress_ratios", [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 1], "draft layers"),
    ("V8", "candidate_source_layer_id", 21, "index_source_layer_ids [2, 8, 14, 20"),
    ("V8", "candidate_source_layer_id", 14, "index source 20 after it must have its ratio 2"),
    ("V8", "candidate_topk_blocks", 2044, "multiple of 8"),
    ("V8", "candidate_topk_blocks", 56, "reach index_topk 512"),
    ("V8", "candidate_block_size", 17, "1..16"),
    ("V10", "index_head_dim", 32, "at least qk_rope_head_dim 64"),
    ("V12", "o_groups", 7, "divide num_attention_heads 64"),
    ("V12", "head_dim", 64, "larger than qk_rope_head_dim 64"),
    ("V13", "engram_head_dim", 100, "multiple of 32"),
    ("V13", "engram_layer_ids", [14, 1], "ascending backbone layers below 40"),
    ("V14", "engram_layer_ids", [1, 20], "before the first consumer layer 20"),
    ("V14", "dspark_target_layer_ids", [18, 19, 20], "one side of the first consumer layer 20"),
    ("V15", "engram_pad_token_id", 3, "equal pad_token_id 2"),
    ("V17", "max_position_embeddings", 8192, "2048 x 8 candidate keys"),
]


@pytest.mark.parametrize(("rule", "key", "value", "allowed"), BROKEN_RULES)
def test_a_broken_rule_is_one_sentence(rule: str, key: str, value: Any, allowed: str) -> None:
    values = changed(f"text_config.{key}", value)
    if key.startswith("engram_"):
        del values["text_config"]["engram_num_embeddings"]
    message = refusal(values)
    assert f"text_config.{key} is {value!r}" in message
    assert allowed in message
    assert rule in message


def test_a_source_must_have_the_ratio_of_its_consumers() -> None:
    ratios = [0, 0] + [2] * 18 + [1] * 6 + [2] * 14 + [0] * 3
    message = refusal(changed("text_config.compress_ratios", ratios))
    assert "kv_source_layer_ids is [2, 8, 14, 20]" in message
    assert "layer 26 has ratio 2 and its source 20 has ratio 1" in message
    assert "V5" in message


WRONG_VALUES = [
    ("vocab_size", 0, "an integer of at least 1"),
    ("vocab_size", True, "an integer of at least 1"),
    ("hidden_size", 5120.0, "an integer of at least 1"),
    ("hidden_size", 5100, "multiple of 32"),
    ("qk_rope_head_dim", 63, "must be even"),
    ("rms_norm_eps", 0, "a finite number above 0"),
    ("rms_norm_eps", float("nan"), "a finite number above 0"),
    ("swiglu_limit", float("inf"), "a finite number above 0"),
    ("compress_ratios", "0,1", "a list of integers"),
    ("hc_shifted", 1, "true or false"),
    ("rope_scaling", [], "a JSON object"),
    ("num_experts_per_tok", 385, "must not exceed n_routed_experts 384"),
    ("engram_max_ngram_size", 1, "an integer of at least 2"),
    ("engram_compressed_vocab_size", 0, "an integer of at least 1"),
    ("engram_num_embeddings", [384006168, 5], "384016682"),
    ("engram_num_embeddings", 5, "a list of integers"),
    ("dspark_num_experts_per_tok", 129, "must not exceed dspark_n_routed_experts 128"),
    ("dspark_noise_token_id", 129280, "below vocab_size 129280"),
    ("dspark_target_layer_ids", [40], "below 40"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), WRONG_VALUES)
def test_a_wrong_value_is_one_sentence(key: str, value: Any, allowed: str) -> None:
    message = refusal(changed(f"text_config.{key}", value))
    assert f"text_config.{key} is {value!r}" in message
    assert allowed in message


OPTIONAL_TEXT_KEYS = {
    "rope_scaling",
    "candidate_source_layer_id",
    "engram_layer_ids",
    "engram_compressed_vocab_size",
    "engram_num_embeddings",
    "num_nextn_predict_layers",
    "tie_word_embeddings",  # carried, never acted on
}


@pytest.mark.parametrize(
    "key", sorted(published_values()["text_config"].keys() - OPTIONAL_TEXT_KEYS)
)
def test_a_missing_text_key_is_named(key: str) -> None:
    assert f"text_config.{key} is missing" in refusal(changed(f"text_config.{key}", MISSING))


@pytest.mark.parametrize(
    "key",
    [
        "architectures",
        "model_type",
        "dtype",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "quantization_config",
        "text_config",
        "vision_config",
        "vision_config.hidden_size",
        "vision_config.downsample_ratio",
    ],
)
def test_a_missing_top_level_key_is_named(key: str) -> None:
    assert f"{key} is missing" in refusal(changed(key, MISSING))


def test_absent_optional_keys_take_their_defaults() -> None:
    config = v41_flash()
    assert config.hc_shifted is True
    assert config.use_fp4_sparse_kv is True
    assert config.index_k_source_layer_ids == config.kv_source_layer_ids
    assert config.tokenizer_compatibility == "release"
    assert v41_flash().with_overrides(candidate_source_layer_id=None).layers[24].candidates == ""
    assert tiny(rope_scaling=None).rope_scaling is None
    assert tiny(engram_layer_ids=[]).engram is None
    assert tiny().draft is None


def test_layer_table_of_the_published_model() -> None:
    """model.md 1.6, row by row."""
    config = v41_flash()
    assert config.first_consumer_layer == 20
    kv_of = {**dict.fromkeys(range(2, 8), 2), **dict.fromkeys(range(8, 14), 8)}
    kv_of |= {**dict.fromkeys(range(14, 20), 14), **dict.fromkeys(range(20, 40), 20)}
    index_of = dict(kv_of)
    for source in (24, 28, 32, 36):
        index_of |= dict.fromkeys(range(source, source + 4), source)
    for spec in config.layers:
        layer = spec.index
        assert spec.ratio == (0 if layer < 2 else 2 if layer < 20 else 1)
        assert spec.consumer == (layer >= 20)
        assert spec.engram == {1: 0, 14: 1}.get(layer)
        assert spec.owns_kv == spec.owns_index_keys == (layer in (2, 8, 14, 20))
        assert spec.owns_index == (layer in (2, 8, 14, 20, 24, 28, 32, 36))
        assert spec.candidates == {
            20: "source",
            **dict.fromkeys((24, 28, 32, 36), "restricted"),
        }.get(layer, "")
        if layer >= 2:
            assert (spec.kv_source, spec.index_k_source) == (kv_of[layer],) * 2
            assert spec.index_source == index_of[layer]
    assert len(config.layers) == 40
    assert config.kv_sources(2) == (2, 8, 14)
    assert config.kv_sources(1) == (20,)


def test_first_consumer_layer() -> None:
    assert tiny().first_consumer_layer == 6
    without = tiny(
        compress_ratios=[0, 0, 2, 2, 2, 2, 2, 2, 2, 2],
        candidate_source_layer_id=None,
    )
    assert without.first_consumer_layer == 10


def test_hash_primes_and_table_rows_of_the_published_model() -> None:
    """model.md 8.3: first prime in full, the others by their last three digits."""
    published = [
        [
            (16000057, "079 081 097 121 129 133 183"),
            (16000189, "207 211 253 277 289 307 321"),
            (16000339, "381 393 399 403 409 447 463"),
        ],
        [
            (16000477, "487 499 507 511 573 609 627"),
            (16000667, "669 693 697 711 729 759 769"),
            (16000781, "799 813 819 841 877 879 889"),
        ],
    ]
    expected = tuple(
        tuple(
            (first, *(16000000 + int(digits) for digits in rest.split())) for first, rest in layer
        )
        for layer in published
    )
    engram = v41_flash().engram
    assert engram is not None
    assert engram.primes == expected
    assert engram.table_rows == (384006168, 384016682)
    assert engram.columns == 24


def test_hash_primes_of_the_tiny_model() -> None:
    """model.md 13."""
    engram = tiny().engram
    assert engram is not None
    assert engram.primes[0] == ((67, 71), (73, 79), (83, 89))
    assert engram.primes[1] == ((97, 101), (103, 107), (109, 113))
    assert engram.table_rows == (462, 630)


def test_tensor_count_of_the_published_model() -> None:
    """model.md 11.1: 93 421 text tensors, none named twice."""
    names = [name for spec in parameter_table(v41_flash()) for _, name in spec.tensors()]
    assert len(names) == len(set(names))
    assert sum(not name.startswith("mtp.") for name in names) == 93421


def test_tensor_names_follow_the_ratios() -> None:
    """Each layer has the compressor and indexer tensors of its own kind, and no others."""
    names = {name for spec in parameter_table(v41_flash()) for _, name in spec.tensors()}
    for layer in range(40):
        attn = f"layers.{layer}.attn"
        assert (f"{attn}.compressor.wkv.weight" in names) == (layer in (2, 8, 14, 20))
        assert (f"{attn}.compressor.wgate.weight" in names) == (layer in (2, 8, 14))
        assert (f"{attn}.indexer.wk.weight" in names) == (layer in (2, 8, 14, 20))
        assert (f"{attn}.indexer.wq_b.scale" in names) == (layer in (2, 8, 14, 20, 24, 28, 32, 36))
        assert (f"layers.{layer}.engram.embed.scale" in names) == (layer in (1, 14))


def test_head_mix_exists_only_without_the_shift() -> None:
    names = {spec.name for spec in parameter_table(tiny(hc_shifted=False))}
    assert {"hc_head_fn", "hc_head_base", "hc_head_scale"} <= names
    assert "hc_head_fn" not in {spec.name for spec in parameter_table(tiny())}


def test_from_pretrained_reads_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published_values()))
    assert ModelConfig.from_pretrained(tmp_path) == v41_flash()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "not valid JSON"),
        ("\udcff", "not valid JSON"),
        ("[]", "must be a JSON object"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=complaint):
        ModelConfig.from_pretrained(tmp_path)


def test_overrides_are_checked() -> None:
    assert tiny().with_overrides(sliding_window=4).sliding_window == 4
    with pytest.raises(ConfigError, match="o_groups"):
        tiny().with_overrides(o_groups=3)


def test_the_format_true_configuration_keeps_the_cache_formats() -> None:
    config = tiny_formats()
    assert (config.head_dim, config.qk_rope_head_dim, config.index_head_dim) == (512, 64, 128)
