"""A checkpoint folder into the parameter tree: lazily, and for each device only the slice it needs.

Weights keep their stored formats. Tensors of one leaf are stacked straight into one host buffer per
distinct slice, which is dropped once its devices have it, so the host never holds more than one
slice of one leaf.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np

from dsinfer_jax.checkpoint.index import StoredTensor, find_tensors
from dsinfer_jax.checkpoint.progress import Progress
from dsinfer_jax.checkpoint.vocabulary import load_hash_params
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec
from dsinfer_jax.model.params import Array, Params, build_tree

ShardingRule = Callable[[TensorSpec], jax.sharding.Sharding | None]
Slices = tuple[slice, ...]

_THREADS = 4  # copies wait for the disk: four threads read about twice as fast as one
_PIECE_BYTES = (
    64 << 20
)  # larger tensors are copied in pieces of rows, so that threads and progress share them


def load_pretrained(
    folder: str | Path,
    *,
    sharding: ShardingRule | None = None,
    config: ModelConfig | None = None,
) -> tuple[ModelConfig, Params]:
    """Load a checkpoint in the Hugging Face layout (model.md 11).

    Args:
        folder: holds config.json, model.safetensors.index.json, the shards and, for a model with
            n-gram memory, tokenizer.json.
        sharding: gives the placement of each row of the parameter table; None, or a row it answers
            None for, means jax's default device. Of several processes each reads the slices of its
            own devices.
        config: replaces the folder's config.json; the tensors must fit it.

    Returns:
        The configuration and the parameters, on their devices.

    Raises:
        ConfigError: config.json cannot be used.
        CheckpointError: index, shards or tokenizer cannot be used; nothing is on a device then.
    """
    if config is None:
        config = ModelConfig.from_pretrained(folder)
    tensors = find_tensors(folder, config)
    hashes = load_hash_params(folder, config)

    def read_derived(spec: TensorSpec, index: Slices) -> np.ndarray:
        return getattr(hashes, str(spec.path[-1]))[index]

    total = sum(tensor.layout.nbytes for tensor in tensors.values())
    progress = Progress(f"loading {folder}", total)
    with ThreadPoolExecutor(_THREADS) as threads:
        reader = _LeafReader(tensors, threads, progress)

        def leaf(spec: TensorSpec) -> Array:
            read = reader.read if spec.name else read_derived
            return _place(spec, lambda index: read(spec, index), sharding and sharding(spec))

        params = build_tree(config, leaf)
    progress.close()
    return config, params


def _place(
    spec: TensorSpec, read: Callable[[Slices], np.ndarray], sharding: jax.sharding.Sharding | None
) -> Array:
    """One leaf on its devices, slice after slice.

    `make_array_from_callback` would hold the slices of all devices on the host at once.
    """
    shape = spec.stacked_shape
    if sharding is None:
        return jax.device_put(read(tuple(slice(0, size) for size in shape)))
    devices_of: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape))
        devices_of.setdefault(bounds, []).append(device)
    parts = []
    for bounds, devices in devices_of.items():
        values = read(tuple(slice(*bound) for bound in bounds))
        copies = [jax.device_put(values, device) for device in devices]
        parts += jax.block_until_ready(copies)  # else the transfers would keep all slices alive
    return jax.make_array_from_single_device_arrays(
        shape, sharding, parts, dtype=MEMORY_DTYPES[spec.dtype]
    )


class _LeafReader:
    """Fills host buffers with slices of stacked leaves, copying in several threads."""

    def __init__(
        self, tensors: Mapping[str, StoredTensor], threads: Executor, progress: Progress
    ) -> None:
        self._tensors, self._threads, self._progress = tensors, threads, progress

    def read(self, spec: TensorSpec, index: Slices) -> np.ndarray:
        """The slice `index` of the stacked leaf, in its memory dtype."""
        dtype = np.dtype(MEMORY_DTYPES[spec.dtype])
        raw = np.dtype(f"u{dtype.itemsize}")  # plain integers copy without the interpreter's lock
        buffer = np.empty([part.stop - part.start for part in index], raw)

        def copy(piece: tuple[str, tuple[int, ...], slice]) -> int:
            name, position, rows = piece
            source = self._tensors[name].read().view(raw)[index[len(position) :]]
            buffer[position][rows] = source[rows]
            return source[rows].nbytes

        for count in self._threads.map(copy, _pieces(spec, index, raw.itemsize)):
            self._progress.add(count)
        return buffer.view(dtype)


def _pieces(
    spec: TensorSpec, index: Slices, itemsize: int
) -> Iterator[tuple[str, tuple[int, ...], slice]]:
    """(checkpoint name, position in the buffer, rows of the tensor's slice) of every copy."""
    stacked = len(spec.stacked_shape) - len(spec.shape)
    rows, *rest = (part.stop - part.start for part in index[stacked:])
    step = max(1, _PIECE_BYTES // max(1, math.prod(rest) * itemsize))
    cuts = [*range(0, rows, step), rows]
    for position, name in spec.tensors():
        outer = list(zip(position, index))
        if all(part.start <= place < part.stop for place, part in outer):
            for start, stop in pairwise(cuts):
                yield name, tuple(place - part.start for place, part in outer), slice(start, stop)
