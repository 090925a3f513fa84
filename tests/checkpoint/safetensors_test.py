"""The file format: views of every type, and a sentence for every kind of damage."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dsinfer_jax.checkpoint.errors import CheckpointError
from dsinfer_jax.checkpoint.safetensors import (
    STORED_DTYPES,
    SafetensorsFile,
    TensorLayout,
    write_safetensors,
)


def write_raw(path: Path, header: object, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        SafetensorsFile(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_every_type_survives_writing_and_reading(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        name: random.integers(0, 2, (3, 5)).astype(dtype) for name, dtype in STORED_DTYPES.items()
    }
    arrays["scalar"] = np.array(2.5, np.float32)
    arrays["empty"] = np.empty((0, 4), ml_dtypes.bfloat16)
    kinds = {name: name for name in STORED_DTYPES} | {"scalar": "F32", "empty": "BF16"}
    layouts = {name: TensorLayout(kinds[name], array.shape) for name, array in arrays.items()}
    path = tmp_path / "all.safetensors"
    write_safetensors(path, layouts, lambda name: [arrays[name]])

    file = SafetensorsFile(path)
    assert file.layouts == layouts
    for name, array in arrays.items():
        read = file.read(name)
        assert read.dtype == STORED_DTYPES[kinds[name]]
        assert read.shape == array.shape
        assert read.tobytes() == array.tobytes()


def test_reading_copies_nothing_and_refuses_writing(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.safetensors", {"a": entry("F32", [4], 0, 16)}, bytes(16))
    view = SafetensorsFile(path).read("a")
    assert not view.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_the_public_package_reads_what_is_written(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "a.safetensors"
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_safetensors(path, {"a": TensorLayout("F32", (2, 3))}, lambda _: list(values))
    np.testing.assert_array_equal(safetensors.load_file(path)["a"], values)


def test_the_public_package_writes_what_is_read(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "a.safetensors"
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    safetensors.save_file({"a": values}, path)
    np.testing.assert_array_equal(SafetensorsFile(path).read("a"), values)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 8, 40])
def test_a_file_cut_in_its_header_is_refused(tmp_path: Path, kept: int) -> None:
    path = write_raw(tmp_path / "a.safetensors", {"a": entry("F32", [4], 0, 16)}, bytes(16))
    path.write_bytes(path.read_bytes()[:kept])
    message = refusal(path)
    assert "shorter than its own header" in message or "not JSON" in message


@pytest.mark.parametrize("removed", [1, 16])
def test_a_file_cut_in_its_data_is_refused(tmp_path: Path, removed: int) -> None:
    path = write_raw(tmp_path / "a.safetensors", {"a": entry("F32", [4], 0, 16)}, bytes(16))
    path.write_bytes(path.read_bytes()[:-removed])
    assert "truncated" in refusal(path)


DAMAGED_HEADERS = {
    "not JSON": (b"{", b""),
    "no JSON object": ([], b""),
    "must hold dtype, shape and data_offsets": ({"a": {"dtype": "F32"}}, b""),
    "the dtype must be one of": ({"a": entry("F7", [1], 0, 4)}, bytes(4)),
    "no size negative": ({"a": entry("F32", [-1], 0, 4)}, bytes(4)),
    "claims bytes 0 to 8 of 4": ({"a": entry("F32", [2], 0, 8)}, bytes(4)),
    "claims bytes -4 to 0": ({"a": entry("F32", [1], -4, 0)}, bytes(4)),
    "claims bytes 4 to 0": ({"a": entry("F32", [1], 4, 0)}, bytes(4)),
    "needs 8 bytes and claims bytes 0 to 4": ({"a": entry("F32", [2], 0, 4)}, bytes(4)),
    "the one before it ends at 4": (
        {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)},
        bytes(4),
    ),
    "the one before it ends at 0": ({"a": entry("F32", [1], 4, 8)}, bytes(8)),
    "its header describes 4": ({"a": entry("F32", [1], 0, 4)}, bytes(6)),
}


@pytest.mark.parametrize("complaint", DAMAGED_HEADERS)
def test_damage_is_described(tmp_path: Path, complaint: str) -> None:
    header, data = DAMAGED_HEADERS[complaint]
    assert complaint in refusal(write_raw(tmp_path / "a.safetensors", header, data))


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(CheckpointError, match="tensor a has 4 bytes"):
        write_safetensors(
            path, {"a": TensorLayout("F32", (2,))}, lambda _: [np.zeros(1, np.float32)]
        )
    assert list(tmp_path.iterdir()) == []
