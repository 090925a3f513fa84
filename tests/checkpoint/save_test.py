"""Saving: the same names, types, shapes and bytes, in the same files each time."""

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest
from checkpoint_folders import GOLDEN, Saved, assert_same_bits, read_tensors

from dsinfer_jax.checkpoint import CheckpointError, load_pretrained, save, save_pretrained
from dsinfer_jax.checkpoint.index import INDEX_NAME
from dsinfer_jax.checkpoint.safetensors import STORED_DTYPES, SafetensorsFile
from dsinfer_jax.config import tiny
from dsinfer_jax.model.init import init


def assert_same_tensors(left: Path, right: Path) -> None:
    one, other = read_tensors(left), read_tensors(right)
    assert one.keys() == other.keys()
    for name, (dtype, values) in one.items():
        assert (dtype, values.shape) == (other[name][0], other[name][1].shape), name
        assert values.tobytes() == other[name][1].tobytes(), name


def assert_same_files(left: Path, right: Path) -> None:
    names = sorted(path.name for path in left.iterdir())
    assert names == sorted(path.name for path in right.iterdir())
    for name in names:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


def test_load_and_save_give_the_same_files(saved: Saved, tmp_path: Path) -> None:
    config, params = load_pretrained(saved.folder)
    save_pretrained(params, config, tmp_path, tokenizer_folder=saved.folder, shard_bytes=400_000)
    assert_same_files(saved.folder, tmp_path)


def test_large_leaves_go_layer_by_layer_to_the_same_files(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "_WHOLE_LEAF_BYTES", 0)
    save_pretrained(
        saved.params, saved.config, tmp_path, tokenizer_folder=saved.folder, shard_bytes=400_000
    )
    assert_same_files(saved.folder, tmp_path)


def test_saving_over_the_loaded_folder_keeps_the_values(copy: Path, saved: Saved) -> None:
    config, params = load_pretrained(copy)
    save_pretrained(params, config, copy, tokenizer_folder=copy, shard_bytes=400_000)
    assert_same_bits(params, saved.params)
    assert_same_bits(load_pretrained(copy)[1], saved.params)


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="no shared/golden beside the checkout")
def test_the_golden_checkpoint_round_trips_bit_for_bit(tmp_path: Path) -> None:
    source = GOLDEN / "ckpt"
    config, params = load_pretrained(source)
    save_pretrained(params, config, tmp_path, tokenizer_folder=source)
    assert_same_tensors(source, tmp_path)
    again, reloaded = load_pretrained(tmp_path)
    assert again == config
    assert_same_bits(reloaded, params)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (source / name).read_bytes()
    original = json.loads((source / "config.json").read_text())
    assert json.loads((tmp_path / "config.json").read_text()) == original


@pytest.mark.parametrize("shard_bytes", [1, 100_000, 10**9])
def test_shards_keep_to_their_size(saved: Saved, tmp_path: Path, shard_bytes: int) -> None:
    if shard_bytes == 1:  # a file per tensor: take a model with few
        config = tiny(n_routed_experts=2, engram_layer_ids=[])
        params = init(config, 0)
    else:
        config, params = saved.config, saved.params
    save_pretrained(params, config, tmp_path, shard_bytes=shard_bytes)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    total = 0
    listed: set[str] = set()
    for path in tmp_path.glob("*.safetensors"):
        layouts = SafetensorsFile(path).layouts
        sizes = [layout.nbytes for layout in layouts.values()]
        assert sum(sizes) <= shard_bytes or len(sizes) == 1
        assert all(index["weight_map"][name] == path.name for name in layouts)
        total += sum(sizes)
        listed |= layouts.keys()
    assert listed == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == total
    assert list(index["weight_map"]) == sorted(listed)


def test_every_tensor_is_aligned_to_its_type(tmp_path: Path) -> None:
    config = tiny(hidden_size=96, engram_layer_ids=[])  # scales of 1 x 3 blocks: odd byte counts
    save_pretrained(init(config, 0), config, tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    assert length % 8 == 0
    assert header["layers.0.attn.wq_a.scale"]["shape"] == [1, 3]
    del header["__metadata__"]
    for name, entry in header.items():
        assert entry["data_offsets"][0] % STORED_DTYPES[entry["dtype"]].itemsize == 0, name


def test_a_leaf_of_another_shape_is_named(saved: Saved, tmp_path: Path) -> None:
    params = replace(saved.params, norm=jnp.zeros(63, jnp.bfloat16))
    with pytest.raises(
        CheckpointError, match=r"norm is bfloat16 \[63\]; it must be bfloat16 \[64\]"
    ):
        save_pretrained(params, saved.config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_leaf_of_another_type_is_named(saved: Saved, tmp_path: Path) -> None:
    params = replace(saved.params, norm=jnp.zeros(64, jnp.float32))
    with pytest.raises(
        CheckpointError, match=r"norm is float32 \[64\]; it must be bfloat16 \[64\]"
    ):
        save_pretrained(params, saved.config, tmp_path / "new")


def test_a_missing_tokenizer_is_named(saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        save_pretrained(
            saved.params, saved.config, tmp_path / "new", tokenizer_folder=tmp_path / "absent"
        )


def test_an_interrupted_save_has_no_index(
    copy: Path, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(save, "write_safetensors", fail)
    with pytest.raises(OSError, match="disk full"):
        save_pretrained(saved.params, saved.config, copy)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_pretrained(copy)
