"""Loading: names, shapes and types in both directions, and every fault by name (C01, C04, C05)."""

import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from checkpoint_folders import Saved, Tensors, assert_same_bits, rewrite

from dsinfer_jax.checkpoint import CheckpointError, leaf_reader, load_pretrained
from dsinfer_jax.checkpoint.index import INDEX_NAME, find_tensors
from dsinfer_jax.config import ConfigError, ModelConfig
from dsinfer_jax.kernels.block_formats import decode_e2m1_rows
from dsinfer_jax.model.parameter_table import parameter_table
from dsinfer_jax.model.params import abstract, leaf_at

EXPERT = "layers.3.ffn.experts.5.w1.weight"  # [32, 32] bytes hold 32 x 64 values


def faults_of(folder: Path, config: ModelConfig | None = None) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as error:
        load_pretrained(folder, config=config)
    return error.value.faults


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_pretrained(folder)
    return str(error.value)


def test_what_was_saved_is_loaded_bit_for_bit(saved: Saved) -> None:
    config, params = load_pretrained(saved.folder)
    assert config == saved.config
    assert_same_bits(params, saved.params)


def test_large_tensors_are_copied_in_pieces(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_reader, "_TASK_BYTES", 1000)
    assert_same_bits(load_pretrained(saved.folder)[1], saved.params)


def test_loaded_leaves_have_the_shapes_and_types_of_the_table(saved: Saved) -> None:
    config, params = load_pretrained(saved.folder)
    expected = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract(config))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params) == expected


def test_every_stored_tensor_lands_in_its_place(saved: Saved) -> None:
    """C05: names derived from the layers' kinds are the names of the files, each used once."""
    tensors = find_tensors(saved.folder, saved.config)
    used = []
    for spec in parameter_table(saved.config):
        leaf = leaf_at(saved.params, spec)
        for position, name in spec.tensors():
            used.append(name)
            assert np.asarray(leaf)[position].tobytes() == tensors[name].read().tobytes()
    assert sorted(used) == sorted(tensors)


def test_names_may_carry_the_prefix(copy: Path, saved: Saved) -> None:
    def prefix_all(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[f"model.{name}"] = tensors.pop(name)

    rewrite(copy, prefix_all)
    assert_same_bits(load_pretrained(copy)[1], saved.params)


@pytest.mark.parametrize("move", [True, False])
def test_both_forms_of_names_are_refused(copy: Path, move: bool) -> None:
    def prefix_one(tensors: Tensors) -> None:
        tensors["model.norm.weight"] = tensors["norm.weight"]
        if move:
            del tensors["norm.weight"]

    rewrite(copy, prefix_one)
    message = refusal(copy)
    assert "with and without the prefix 'model.'" in message
    assert "model.norm.weight" in message


@pytest.mark.parametrize(
    "name",
    [
        "embed.weight",
        "layers.0.attn.wq_a.scale",
        "layers.4.attn.compressor.wgate.weight",
        "layers.8.attn.indexer.wq_b.scale",
        "layers.4.engram.embed.weight",
        "mtp.1.markov_head.embed.weight",
        EXPERT,
    ],
)
def test_a_deleted_tensor_is_named(copy: Path, name: str) -> None:
    rewrite(copy, lambda tensors: tensors.pop(name))
    (fault,) = faults_of(copy)
    assert fault.startswith(f"missing: {name}, ")


def test_a_renamed_tensor_is_named_twice(copy: Path) -> None:
    def rename(tensors: Tensors) -> None:
        tensors["layers.2.attn.wq_c.weight"] = tensors.pop("layers.2.attn.wq_a.weight")

    rewrite(copy, rename)
    missing, surplus = faults_of(copy)
    assert missing.startswith("missing: layers.2.attn.wq_a.weight, F8_E4M3 [32, 64]")
    assert surplus.startswith("surplus: layers.2.attn.wq_c.weight")


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.attn.indexer.wq_b.scale",  # a layer without an indexer
        "layers.6.attn.compressor.wgate.weight",  # ratio 1 has no gate
        "layers.3.ffn.experts.8.w1.weight",
        "hc_head_fn",
        "mtp.2.norm.weight",
    ],
)
def test_a_surplus_tensor_is_named(copy: Path, name: str) -> None:
    rewrite(copy, lambda tensors: tensors.update({name: ("F32", np.zeros(3, np.float32))}))
    (fault,) = faults_of(copy)
    assert fault.startswith(f"surplus: {name}")


def test_a_misshaped_tensor_is_named(copy: Path) -> None:
    def transpose(tensors: Tensors) -> None:
        dtype, values = tensors["layers.0.attn.wq_a.weight"]
        tensors["layers.0.attn.wq_a.weight"] = (dtype, values.T)

    rewrite(copy, transpose)
    assert faults_of(copy) == (
        "misshaped: layers.0.attn.wq_a.weight is [64, 32]; it must be [32, 64]",
    )


@pytest.mark.parametrize("columns", [16, 64])
def test_packed_width_is_half_the_width(copy: Path, columns: int) -> None:
    """C04: neither half of the packed width nor the unpacked width will do."""
    rewrite(
        copy, lambda tensors: tensors.update({EXPERT: ("I8", np.zeros((32, columns), np.int8))})
    )
    assert faults_of(copy) == (f"misshaped: {EXPERT} is [32, {columns}]; it must be [32, 32]",)


@pytest.mark.parametrize(
    ("name", "dtype", "values"),
    [
        (EXPERT, "U8", np.zeros((32, 32), np.uint8)),
        ("norm.weight", "F32", np.zeros(64, np.float32)),
        ("norm.weight", "F16", np.zeros(64, np.float16)),
        ("layers.0.hc_attn_fn", "BF16", np.zeros((24, 256), ml_dtypes.bfloat16)),
        ("layers.0.attn.wq_a.scale", "U8", np.zeros((1, 2), np.uint8)),
    ],
)
def test_a_mistyped_tensor_is_named(copy: Path, name: str, dtype: str, values: np.ndarray) -> None:
    rewrite(copy, lambda tensors: tensors.update({name: (dtype, values)}))
    (fault,) = faults_of(copy)
    assert fault.startswith(f"mistyped: {name} is {dtype}; it must be ")


def test_all_faults_come_in_one_list(copy: Path) -> None:
    def damage(tensors: Tensors) -> None:
        del tensors["head.weight"]
        tensors["extra"] = ("F32", np.zeros(1, np.float32))
        tensors["norm.weight"] = ("F32", np.zeros(7, np.float32))

    rewrite(copy, damage)
    kinds = sorted(fault.split(":")[0] for fault in faults_of(copy))
    assert kinds == ["misshaped", "missing", "mistyped", "surplus"]
    assert all(f"  {fault}" in refusal(copy) for fault in faults_of(copy))


def test_a_long_list_is_cut_in_the_message_only(copy: Path) -> None:
    def drop_experts(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            del tensors[name]

    rewrite(copy, drop_experts)
    count = 6 * (10 * 8 + 2 * 4)
    assert len(faults_of(copy)) == count
    assert f"and {count - 20} more" in refusal(copy)


def test_a_name_that_is_not_in_its_shard(copy: Path, saved: Saved) -> None:
    path = copy / INDEX_NAME
    index = json.loads(path.read_text())
    first, *_, last = sorted(set(index["weight_map"].values()))
    assert index["weight_map"]["embed.weight"] == first
    index["weight_map"]["embed.weight"] = last
    path.write_text(json.dumps(index))
    assert faults_of(copy) == (f"not in its shard: embed.weight, which the index places in {last}",)


def test_a_tensor_that_the_index_forgot(copy: Path) -> None:
    path = copy / INDEX_NAME
    index = json.loads(path.read_text())
    place = index["weight_map"].pop("embed.weight")
    path.write_text(json.dumps(index))
    forgotten, missing = faults_of(copy)
    assert forgotten == f"not in the index: embed.weight, which lies in {place}"
    assert missing.startswith("missing: embed.weight")


def test_known_parts_of_other_rooms_are_skipped_with_a_line(
    copy: Path, saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ("F32", np.zeros(3, np.float32))
    names = ("vision.patch_embed.weight", "vision.blocks.0.norm.weight", "aligner.weight")
    rewrite(copy, lambda tensors: tensors.update(dict.fromkeys(names, extra)))
    assert_same_bits(load_pretrained(copy)[1], saved.params)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "skipped 3 tensors of vision.* and aligner.*" in captured.err


def test_a_truncated_shard_is_named(copy: Path) -> None:
    shard = sorted(copy.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    (fault,) = faults_of(copy)
    assert shard.name in fault
    assert "truncated" in fault


def test_missing_shards_are_all_named(copy: Path) -> None:
    first, second, *_ = sorted(copy.glob("*.safetensors"))
    first.unlink()
    second.unlink()
    faults = faults_of(copy)
    assert len(faults) == 2
    assert first.name in faults[0]
    assert second.name in faults[1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "not valid JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"embed.weight": 3}}', "must be the name of a file"),
        ('{"weight_map": {"embed.weight": "../model.safetensors"}}', "must be the name of a file"),
    ],
)
def test_an_unusable_index_is_named(copy: Path, text: str | None, complaint: str) -> None:
    path = copy / INDEX_NAME
    path.unlink()
    if text is not None:
        path.write_text(text)
    message = refusal(copy)
    assert complaint in message
    assert INDEX_NAME in message


def test_another_architecture_is_refused(copy: Path) -> None:
    path = copy / "config.json"
    values = json.loads(path.read_text())
    values["architectures"] = ["DeepseekV4ForCausalLM"]
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="architectures"):
        load_pretrained(copy)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_pretrained(tmp_path / "absent")


def test_a_given_configuration_replaces_the_file(saved: Saved) -> None:
    other = saved.config.with_overrides(sliding_window=4)
    config, params = load_pretrained(saved.folder, config=other)
    assert config is other
    assert_same_bits(params, saved.params)
    wider = saved.config.with_overrides(moe_intermediate_size=64)
    assert any("misshaped" in fault for fault in faults_of(saved.folder, config=wider))


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


@pytest.mark.parametrize("swapped", [False, True])
def test_packed_values_keep_their_order(copy: Path, swapped: bool) -> None:
    """C04: the even column lies in the low nibble; one scale per row and 32 columns."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 16, (32, 64))
    even, odd = codes[:, 0::2], codes[:, 1::2]
    packed = (odd | even << 4) if swapped else (even | odd << 4)
    scales = random.integers(120, 132, (32, 2)).astype(np.uint8)

    def plant(tensors: Tensors) -> None:
        tensors[EXPERT] = ("I8", packed.astype(np.uint8).view(np.int8))
        tensors[EXPERT.replace("weight", "scale")] = ("F8_E8M0", scales)

    rewrite(copy, plant)
    _, params = load_pretrained(copy)
    w1 = params.experts.w1
    loaded = decode_e2m1_rows(w1.weight[3, 5], w1.scale[3, 5], np.dtype(np.float32))
    expected = np.array(E2M1)[codes] * np.repeat(2.0 ** (scales.astype(int) - 127), 32, axis=1)
    assert np.array_equal(loaded, expected) != swapped
