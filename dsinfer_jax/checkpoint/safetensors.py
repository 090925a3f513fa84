"""One safetensors file: 8 bytes of little-endian header length, a JSON header, the tensors' bytes.

Written here because the `safetensors` package cannot hand F8 types to NumPy. Reading copies
nothing: a tensor is a view of the memory-mapped file. This module knows no model.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dsinfer_jax.checkpoint.errors import CheckpointError

STORED_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(kind)
    for name, kind in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "U16": np.uint16,
        "I16": np.int16,
        "U32": np.uint32,
        "I32": np.int32,
        "U64": np.uint64,
        "I64": np.int64,
        "F16": np.float16,
        "F32": np.float32,
        "F64": np.float64,
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    }.items()
}
_LENGTH_BYTES = 8
_ALIGNMENT = 8  # of the first tensor byte; headers are padded with spaces


@dataclass(frozen=True)
class TensorLayout:
    """Stored dtype and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * STORED_DTYPES[self.dtype].itemsize


class SafetensorsFile:
    """A memory-mapped file. `layouts` lists its tensors; `read` gives views.

    Raises:
        CheckpointError: the file is missing, truncated or overlong, or its header is not valid.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                if size < _LENGTH_BYTES + length:
                    raise CheckpointError(
                        f"{path} is {size} bytes long, shorter than its own header; "
                        "fetch the file again"
                    )
                text = file.read(length)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}); put the file back"
            ) from error
        self.layouts: dict[str, TensorLayout] = {}
        self._starts: dict[str, int] = {}
        self._data_start = _LENGTH_BYTES + length
        self._read_header(text, size - self._data_start)
        self._bytes = np.memmap(self.path, np.uint8, "r") if size else np.empty(0, np.uint8)

    def read(self, name: str) -> np.ndarray:
        """A read-only view of one tensor in its own type."""
        layout = self.layouts[name]
        start = self._data_start + self._starts[name]
        stored = self._bytes[start : start + layout.nbytes]
        return stored.view(STORED_DTYPES[layout.dtype]).reshape(layout.shape)

    def _read_header(self, text: bytes, data_size: int) -> None:
        try:
            header = json.loads(text)
        except ValueError as error:
            raise CheckpointError(
                f"{self.path} has a header that is not JSON ({error}); fetch the file again"
            ) from error
        if not isinstance(header, dict):
            raise CheckpointError(f"{self.path} has a header that is no JSON object")
        spans = []
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            layout, start, end = self._read_entry(name, entry)
            if not 0 <= start <= end <= data_size or end - start != layout.nbytes:
                raise CheckpointError(
                    f"{self.path}: tensor {name}, {layout.dtype} {list(layout.shape)}, needs "
                    f"{layout.nbytes} bytes and claims bytes {start} to {end} of {data_size}; "
                    "the file is truncated or damaged, fetch it again"
                )
            self.layouts[name], self._starts[name] = layout, start
            spans.append((start, end, name))
        self._check_spans(sorted(spans), data_size)

    def _read_entry(self, name: str, entry: Any) -> tuple[TensorLayout, int, int]:
        try:
            start, end = (int(offset) for offset in entry["data_offsets"])
            layout = TensorLayout(entry["dtype"], tuple(int(size) for size in entry["shape"]))
        except (TypeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}: the header entry of tensor {name} is {entry!r}; "
                "it must hold dtype, shape and data_offsets"
            ) from error
        if layout.dtype not in STORED_DTYPES or min(layout.shape, default=0) < 0:
            raise CheckpointError(
                f"{self.path}: tensor {name} is {layout.dtype} {list(layout.shape)}; "
                f"the dtype must be one of {', '.join(STORED_DTYPES)} and no size negative"
            )
        return layout, start, end

    def _check_spans(self, spans: list[tuple[int, int, str]], data_size: int) -> None:
        """The tensors must tile the data: an overlap or a hole means a damaged header."""
        position = 0
        for start, end, name in spans:
            if start != position:
                raise CheckpointError(
                    f"{self.path}: tensor {name} starts at byte {start} of the data, but the one "
                    f"before it ends at {position}; the file is damaged, fetch it again"
                )
            position = end
        if position != data_size:
            raise CheckpointError(
                f"{self.path} holds {data_size} bytes of data, but its header describes "
                f"{position}; fetch the file again"
            )


def write_safetensors(
    path: str | Path,
    layouts: Mapping[str, TensorLayout],
    parts: Callable[[str], Iterable[np.ndarray]],
) -> None:
    """Write a file, tensors in the order of `layouts`, one part in memory at a time.

    `parts(name)` gives the arrays whose bytes, one after the other, are the tensor's. The file
    appears under its name when complete, so a reader that still maps an older file of that name is
    not disturbed.

    Raises:
        CheckpointError: an array has another size than its layout.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, layout in layouts.items():
        span = [position, position + layout.nbytes]
        header[name] = {"dtype": layout.dtype, "shape": list(layout.shape), "data_offsets": span}
        position = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)

    partial = Path(f"{path}.partial")
    try:
        with partial.open("wb") as file:
            file.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
            file.write(text)
            for name, layout in layouts.items():
                written = sum(file.write(_bytes_of(part)) for part in parts(name))
                if written != layout.nbytes:
                    raise CheckpointError(
                        f"{path}: tensor {name} has {written} bytes; {layout.dtype} "
                        f"{list(layout.shape)} needs {layout.nbytes}"
                    )
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _bytes_of(values: np.ndarray) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
