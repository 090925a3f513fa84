"""Native checkpoints: the bits of their source, and a sentence where they may not stand in."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from checkpoint_folders import Saved, assert_same_bits, rewrite

from dsinfer_jax.checkpoint import CheckpointError, load_native, native, write_native
from dsinfer_jax.checkpoint.convert import main
from dsinfer_jax.checkpoint.manifest import MANIFEST_NAME


@pytest.fixture(scope="module")
def written(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "native"
    write_native(folder, saved.folder)
    return folder


def refusal(folder: Path, source: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_native(folder, source)
    return str(error.value)


def test_the_first_start_writes_and_the_second_reads(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "native"
    folder.mkdir()  # an empty folder is as good as none
    config, params = load_native(folder, saved.folder)
    assert config == saved.config
    assert_same_bits(params, saved.params)

    monkeypatch.setattr(native, "stored_tensors", None)  # the source is not read again
    assert_same_bits(load_native(folder, saved.folder)[1], saved.params)
    assert [path.name for path in tmp_path.iterdir()] == ["native"]


def test_a_process_that_is_not_the_first_writes_nothing(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native.jax, "process_index", lambda: 1)
    assert_same_bits(load_native(tmp_path / "native", saved.folder)[1], saved.params)
    assert not (tmp_path / "native").exists()


def test_a_changed_file_of_the_source_makes_it_stale(written: Path, copy: Path) -> None:
    load_native(written, copy)  # a copy that keeps times is the same source
    shard = sorted(copy.glob("*.safetensors"))[2]
    os.utime(shard, ns=(0, 0))
    message = refusal(written, copy)
    assert "is stale" in message
    assert shard.name in message
    assert "delete the folder" in message


def test_other_shards_make_it_stale(written: Path, copy: Path) -> None:
    rewrite(copy, lambda tensors: None)
    assert "is stale" in refusal(written, copy)


def test_another_configuration_is_refused(written: Path, copy: Path) -> None:
    path = copy / "config.json"
    values = json.loads(path.read_text())
    values["text_config"]["rms_norm_eps"] = 1e-3
    path.write_text(json.dumps(values))
    assert "another config.json" in refusal(written, copy)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "no complete native checkpoint"),
        ("{", "is not a manifest"),
        ("[]", "is not a manifest"),
        ('{"format": 1, "form": "pictures", "config": "", "source": null}', "form is 'pictures'"),
        ('{"format": 2}', "has format 2; this version reads format 1"),
    ],
)
def test_a_folder_without_a_usable_manifest(
    tmp_path: Path, saved: Saved, text: str | None, complaint: str
) -> None:
    (tmp_path / "something").touch()
    if text is not None:
        (tmp_path / MANIFEST_NAME).write_text(text)
    assert complaint in refusal(tmp_path, saved.folder)


def test_damage_is_named(saved: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "native"
    write_native(folder, saved.folder)
    (folder / "experts.w1.weight.safetensors").write_bytes(b"12345678")
    (folder / "embed.safetensors").unlink()
    message = refusal(folder, saved.folder)
    assert "experts.w1.weight.safetensors" in message
    assert "embed.safetensors" in message


def test_what_cannot_be_written_leaves_nothing(saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "mine").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_native(tmp_path / "native", saved.folder)
    assert [path.name for path in tmp_path.iterdir()] == ["native"]
    assert [path.name for path in (tmp_path / "native").iterdir()] == ["mine"]


def test_leaves_are_files_that_others_can_read(written: Path, saved: Saved) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    codes = safetensors.load_file(written / "experts.w1.weight.safetensors")["leaf"]
    np.testing.assert_array_equal(codes.view(np.uint8), np.asarray(saved.params.experts.w1.weight))


def test_a_start_takes_what_orbax_has_stored(saved: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "native"
    assert main([str(saved.folder), str(folder), "--form", "orbax"]) == 0
    assert_same_bits(load_native(folder, saved.folder)[1], saved.params)


def test_the_command_line_refuses_with_one_sentence(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "native"
    assert main([str(saved.folder), str(folder)]) == 0
    for form in ("leaf-files", "orbax"):
        assert main([str(saved.folder), str(folder), "--form", form]) == 2
    first, second = capsys.readouterr().err.strip().splitlines()[-2:]
    assert first.startswith(f"checkpoint: {folder} cannot be written")
    assert second.startswith(f"checkpoint: {folder} holds something")
