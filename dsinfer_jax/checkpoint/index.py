"""From the index of a checkpoint folder to the rows of the parameter table (model.md 11).

Every tensor of the table must be there once, with its shape and dtype, and nothing else may be:
what does not match is reported in one list.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsinfer_jax.checkpoint.errors import CheckpointError
from dsinfer_jax.checkpoint.safetensors import SafetensorsFile, TensorLayout
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import parameter_table

INDEX_NAME = "model.safetensors.index.json"
_PREFIX = "model."
_SKIPPED = ("vision.", "aligner.")  # known parts of the checkpoint that the text model does not use


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the table and the file that holds it."""

    file: SafetensorsFile
    stored_name: str  # as written in the file, perhaps with the optional prefix

    @property
    def layout(self) -> TensorLayout:
        return self.file.layouts[self.stored_name]

    def read(self) -> np.ndarray:
        """A read-only view of the file."""
        return self.file.read(self.stored_name)


def find_tensors(folder: str | Path, config: ModelConfig) -> dict[str, StoredTensor]:
    """Every text tensor of the folder by its name without prefix, checked against the table.

    Raises:
        CheckpointError: the index or a shard cannot be read, or tensors are missing, surplus,
            misshaped or mistyped; `faults` lists them all.
    """
    folder = Path(folder)
    weight_map = _read_weight_map(folder / INDEX_NAME)
    files = _open_shards(folder, sorted(set(weight_map.values())))
    faults = list(_placement_faults(weight_map, files))
    prefix = _common_prefix(folder, weight_map)

    tensors, skipped = {}, 0
    for stored_name, file_name in weight_map.items():
        name = stored_name.removeprefix(prefix)
        if name.startswith(_SKIPPED):
            skipped += 1
        elif stored_name in files[file_name].layouts:
            tensors[name] = StoredTensor(files[file_name], stored_name)
    absent = {name.removeprefix(prefix) for name in weight_map} - tensors.keys()
    faults += _table_faults(config, tensors, absent)
    if faults:
        raise CheckpointError(
            f"{folder} does not hold the tensors its config.json asks for ({len(faults)} faults); "
            "take config.json and shards from the same checkpoint:",
            faults,
        )
    if skipped:
        print(
            f"{folder}: skipped {skipped} tensors of {'* and '.join(_SKIPPED)}*, "
            "which the text model does not use",
            file=sys.stderr,
        )
    return tensors


def shard_names(folder: Path) -> list[str]:
    """Names of the shards, sorted. Raises CheckpointError if the index cannot be read."""
    return sorted(set(_read_weight_map(folder / INDEX_NAME).values()))


def _read_weight_map(path: Path) -> dict[str, str]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); "
            "name a folder that holds a checkpoint with its index"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); restore the file") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map; it must map tensor names to file names")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or not file_name or Path(file_name).name != file_name:
            raise CheckpointError(
                f"{path} maps {name} to {file_name!r}; "
                "it must be the name of a file in the same folder"
            )
    return weight_map


def _open_shards(folder: Path, file_names: Iterable[str]) -> dict[str, SafetensorsFile]:
    files, faults = {}, []
    for file_name in file_names:
        try:
            files[file_name] = SafetensorsFile(folder / file_name)
        except CheckpointError as error:
            faults.append(str(error))
    if faults:
        raise CheckpointError(f"{folder} has shards that cannot be used:", faults)
    return files


def _common_prefix(folder: Path, names: Iterable[str]) -> str:
    """`model.` if the text tensors carry it, "" if not; both forms in one index are ambiguous."""
    text_names = [name for name in names if not name.startswith(_SKIPPED)]
    prefixed = [name for name in text_names if name.startswith(_PREFIX)]
    if prefixed and len(prefixed) < len(text_names):
        plain = next(name for name in text_names if not name.startswith(_PREFIX))
        raise CheckpointError(
            f"{folder / INDEX_NAME} has names with and without the prefix {_PREFIX!r}, such as "
            f"{prefixed[0]} and {plain}; use one form for all"
        )
    return _PREFIX if prefixed else ""


def _placement_faults(
    weight_map: Mapping[str, str], files: Mapping[str, SafetensorsFile]
) -> Iterator[str]:
    for name, file_name in weight_map.items():
        if name not in files[file_name].layouts:
            yield f"not in its shard: {name}, which the index places in {file_name}"
    for file_name, file in files.items():
        for name in file.layouts:
            if name not in weight_map:
                yield f"not in the index: {name}, which lies in {file_name}"


def _table_faults(
    config: ModelConfig, tensors: Mapping[str, StoredTensor], absent: set[str]
) -> Iterator[str]:
    """Two-way comparison; names in `absent` have been reported already."""
    expected = {
        name: TensorLayout(spec.dtype, spec.shape)
        for spec in parameter_table(config)
        for _, name in spec.tensors()
    }
    for name, wanted in expected.items():
        if name not in tensors:
            if name not in absent:
                yield f"missing: {name}, {wanted.dtype} {list(wanted.shape)}"
            continue
        found = tensors[name].layout
        if found.shape != wanted.shape:
            yield f"misshaped: {name} is {list(found.shape)}; it must be {list(wanted.shape)}"
        if found.dtype != wanted.dtype:
            yield f"mistyped: {name} is {found.dtype}; it must be {wanted.dtype}"
    for name in tensors:
        if name not in expected:
            yield f"surplus: {name}, which this configuration does not use"
