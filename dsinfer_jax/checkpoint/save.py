"""The parameter tree back into a checkpoint folder, bit for bit (model.md 11)."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsinfer_jax.checkpoint.errors import CheckpointError
from dsinfer_jax.checkpoint.index import INDEX_NAME
from dsinfer_jax.checkpoint.progress import Progress
from dsinfer_jax.checkpoint.safetensors import STORED_DTYPES, TensorLayout, write_safetensors
from dsinfer_jax.checkpoint.vocabulary import TOKENIZER_NAME
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec, parameter_table
from dsinfer_jax.model.params import Params, leaf_at

_SHARD_BYTES = 5 * 10**9
_WHOLE_LEAF_BYTES = 1 << 28  # larger leaves come to the host layer by layer
_TOKENIZER_FILES = (TOKENIZER_NAME, "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True)
class _Source:
    """Where the values of a checkpoint tensor lie: a leaf, and the position in its stack."""

    spec: TensorSpec
    position: tuple[int, ...]

    @property
    def layout(self) -> TensorLayout:
        return TensorLayout(self.spec.dtype, self.spec.shape)


def save_pretrained(
    params: Params,
    config: ModelConfig,
    folder: str | Path,
    *,
    tokenizer_folder: str | Path | None = None,
    shard_bytes: int = _SHARD_BYTES,
) -> None:
    """Write config.json, shards and index as `load_pretrained` reads them.

    Names, dtypes, shapes and bytes are those that were loaded; the same arguments write the same
    files. Tensors of the vision tower are no part of the tree and are not written. The index comes
    last: a folder without one is incomplete.

    Args:
        params: the tree; every leaf must be whole in this process.
        config: its configuration; config.json is what it was read from.
        folder: created if needed. Files of the same names are replaced.
        tokenizer_folder: tokenizer.json and its companions are copied from here. A model with
            n-gram memory cannot be loaded without them.
        shard_bytes: a shard is closed before it would hold more data than this, unless one tensor
            alone does.

    Raises:
        CheckpointError: a leaf does not fit the configuration or is spread over processes, or
            tokenizer.json is not in `tokenizer_folder`.
    """
    folder = Path(folder)
    table = parameter_table(config)
    _check_leaves(params, table)
    sources = {name: _Source(spec, position) for spec in table for position, name in spec.tensors()}
    shards = _cut(sources, shard_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX_NAME).unlink(missing_ok=True)
    _write_json(folder / "config.json", config.raw)
    if tokenizer_folder is not None:
        _copy_tokenizer(Path(tokenizer_folder), folder)

    total = sum(source.layout.nbytes for source in sources.values())
    progress = Progress(f"saving {folder}", total)
    weight_map = {}
    parts = _reader(params, sources, progress)
    for number, names in enumerate(shards, start=1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / file_name, {name: sources[name].layout for name in names}, parts)
        weight_map.update(dict.fromkeys(names, file_name))
    progress.close()
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: weight_map[name] for name in sorted(weight_map)},
    }
    _write_json(folder / INDEX_NAME, index)


def _check_leaves(params: Params, table: tuple[TensorSpec, ...]) -> None:
    faults = []
    for spec in table:
        leaf = leaf_at(params, spec)
        found = f"{leaf.dtype} {list(leaf.shape)}"
        wanted = f"{np.dtype(MEMORY_DTYPES[spec.dtype])} {list(spec.stacked_shape)}"
        if found != wanted:
            faults.append(f"{spec.dotted} is {found}; it must be {wanted}")
        elif not getattr(leaf, "is_fully_addressable", True):
            faults.append(f"{spec.dotted} is spread over several processes; gather it first")
    if faults:
        raise CheckpointError("the parameters do not fit the configuration:", faults)


def _cut(sources: dict[str, _Source], shard_bytes: int) -> list[list[str]]:
    """Names of each shard, in table order; within it wide types first, so that all are aligned."""
    shards: list[list[str]] = []
    room = 0
    for name, source in sources.items():
        if not shards or source.layout.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= source.layout.nbytes
    for shard in shards:
        shard.sort(key=lambda name: -STORED_DTYPES[sources[name].spec.dtype].itemsize)
    return shards


def _reader(
    params: Params, sources: dict[str, _Source], progress: Progress
) -> Callable[[str], list[np.ndarray]]:
    """Values by name. A small leaf, or one layer of a large one, is on the host at a time."""
    held: dict[tuple[tuple[str | int, ...], tuple[int, ...]], np.ndarray] = {}

    def parts(name: str) -> list[np.ndarray]:
        source = sources[name]
        leaf = leaf_at(params, source.spec)
        stacked = 0 if leaf.nbytes <= _WHOLE_LEAF_BYTES else 1
        outer, inner = source.position[:stacked], source.position[stacked:]
        key = (source.spec.path, outer)
        if key not in held:
            held.clear()
            held[key] = np.asarray(leaf[outer] if outer else leaf)
        progress.add(source.layout.nbytes)
        return [held[key][inner]]

    return parts


def _copy_tokenizer(source: Path, folder: Path) -> None:
    if not (source / TOKENIZER_NAME).is_file():
        raise CheckpointError(
            f"{source / TOKENIZER_NAME} is missing; name the folder that holds the tokenizer"
        )
    if source.resolve() == folder.resolve():
        return
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
