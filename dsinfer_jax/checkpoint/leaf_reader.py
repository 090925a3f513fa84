"""Stored tensors straight into the leaves of devices: for each device only the slice it needs.

Weights keep their stored formats. Tensors of one leaf are stacked into one host buffer per distinct
slice, which is dropped once its devices have it, so the host never holds more than one slice of
one leaf.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product

import jax
import numpy as np

from dsinfer_jax.checkpoint.places import LeafPlace, PlaceRule
from dsinfer_jax.checkpoint.progress import Progress
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec, parameter_table
from dsinfer_jax.model.params import Array, Params, build_tree

# the tensor at a position of a stacked leaf, as a view of a file
Stored = Callable[[TensorSpec, tuple[int, ...]], np.ndarray]
Slices = tuple[slice, ...]
Bounds = tuple[tuple[int, int], ...]

_THREADS = 4  # copies wait for the disk: four threads read about twice as fast as one
_TASK_BYTES = 32 << 20  # a thread's task: many small tensors, or some rows of a large one


def read_tree(config: ModelConfig, stored: Stored, place: PlaceRule | None, label: str) -> Params:
    """The parameter tree on the devices of this process, read slice after slice.

    Args:
        stored: gives the tensors. Only what the devices need is touched.
        place: where every leaf lies. Of several processes each reads for its own devices.
        label: of the progress bar, which counts this process's bytes.
    """
    leaves = {spec.path: _Leaf.of(spec, place) for spec in parameter_table(config)}
    progress = Progress(label, sum(leaf.nbytes for leaf in leaves.values()))
    with ThreadPoolExecutor(_THREADS) as threads:
        reader = LeafReader(stored, threads, progress)
        params = build_tree(config, lambda spec: leaves[spec.path].load(reader))
    progress.close()
    return params


@dataclass(frozen=True)
class _Leaf:
    """A leaf and the distinct slices that devices of this process have of it."""

    spec: TensorSpec
    place: LeafPlace | None
    devices_of: Mapping[Bounds, Sequence[jax.Device]]

    @classmethod
    def of(cls, spec: TensorSpec, rule: PlaceRule | None) -> "_Leaf":
        place = rule(spec) if rule else None
        if place is None:
            return cls(spec, None, {tuple((0, size) for size in spec.stacked_shape): []})
        shape = place.shape(spec)
        devices_of: dict[Bounds, list[jax.Device]] = {}
        for device, index in place.sharding.addressable_devices_indices_map(shape).items():
            bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape))
            devices_of.setdefault(bounds, []).append(device)
        return cls(spec, place, devices_of)

    @property
    def nbytes(self) -> int:
        """To be read."""
        return sum(_nbytes(self.spec, bounds) for bounds in self.devices_of)

    def load(self, reader: "LeafReader") -> Array:
        """The leaf on its devices.

        `make_array_from_callback` would hold the slices of all devices on the host at once.
        """
        if self.place is None:
            (bounds,) = self.devices_of
            return jax.device_put(reader.read(self.spec, None, bounds))
        parts = []
        for bounds, devices in self.devices_of.items():
            values = reader.read(self.spec, self.place.expert_at, bounds)
            copies = [jax.device_put(values, device) for device in devices]
            parts += jax.block_until_ready(copies)  # else the transfers would keep all slices alive
        leaf = jax.make_array_from_single_device_arrays(
            self.place.shape(self.spec),
            self.place.sharding,
            parts,
            dtype=MEMORY_DTYPES[self.spec.dtype],
        )
        return self.place.laid_out(leaf)


@dataclass(frozen=True)
class _Copy:
    """One copy from a stored tensor into the buffer of a slice."""

    source: tuple[int, ...]  # position in the stacked leaf
    inner: Slices  # of the tensor at that position
    target: tuple[int | slice, ...]  # in the buffer
    nbytes: int


class LeafReader:
    """Fills host buffers with slices of stacked leaves, copying in several threads."""

    def __init__(self, stored: Stored, threads: Executor, progress: Progress) -> None:
        self._stored, self._threads, self._progress = stored, threads, progress

    def read(self, spec: TensorSpec, expert_at: np.ndarray | None, bounds: Bounds) -> np.ndarray:
        """A slice of the leaf in its places, in its memory dtype; zeros behind the leaf's rows."""
        dtype = np.dtype(MEMORY_DTYPES[spec.dtype])
        raw = np.dtype(f"u{dtype.itemsize}")  # plain integers copy without the interpreter's lock
        buffer = np.zeros([stop - start for start, stop in bounds], raw)

        def run(task: Sequence[_Copy]) -> int:
            for one in task:
                source = self._stored(spec, one.source).view(raw)
                buffer[one.target] = source[one.inner]
            return sum(one.nbytes for one in task)

        for count in self._threads.map(run, _tasks(_copies(spec, expert_at, bounds))):
            self._progress.add(count)
        return buffer.view(dtype)


def _copies(spec: TensorSpec, expert_at: np.ndarray | None, bounds: Bounds) -> Iterator[_Copy]:
    """What fills the buffer of a slice; of large tensors a few rows at a time."""
    stack, inner = _cut(spec, bounds)
    sizes = [stop - start for start, stop in inner]
    itemsize = np.dtype(MEMORY_DTYPES[spec.dtype]).itemsize
    pieces: list[Bounds] = [inner]
    if sizes:
        row = math.prod(sizes[1:]) * itemsize
        first, last = inner[0]
        step = max(1, _TASK_BYTES // max(1, row))
        pieces = [(cut, *inner[1:]) for cut in pairwise([*range(first, last, step), last])]
    for position in product(*(range(*part) for part in stack)):
        source = position
        if expert_at is not None:
            source = (*position[:-1], int(expert_at[position]))
        where = tuple(number - start for number, (start, _) in zip(position, stack))
        for piece in pieces:
            cells = [
                slice(start - low, stop - low) for (start, stop), (low, _) in zip(piece, inner)
            ]
            nbytes = math.prod(stop - start for start, stop in piece) * itemsize
            yield _Copy(source, tuple(slice(*cut) for cut in piece), (*where, *cells), nbytes)


def _tasks(copies: Iterator[_Copy]) -> Iterator[list[_Copy]]:
    """Copies in groups that are worth a thread's while."""
    task: list[_Copy] = []
    room = _TASK_BYTES
    for one in copies:
        if task and one.nbytes > room:
            yield task
            task, room = [], _TASK_BYTES
        task.append(one)
        room -= one.nbytes
    if task:
        yield task


def _cut(spec: TensorSpec, bounds: Bounds) -> tuple[Bounds, Bounds]:
    """Bounds in the stack, and within a tensor as far as it goes."""
    stacked = len(spec.stacked_shape) - len(spec.shape)
    inner = tuple(
        (min(start, size), min(stop, size))
        for (start, stop), size in zip(bounds[stacked:], spec.shape)
    )
    return bounds[:stacked], inner


def _nbytes(spec: TensorSpec, bounds: Bounds) -> int:
    stack, inner = _cut(spec, bounds)
    cells = math.prod(stop - start for start, stop in (*stack, *inner))
    return cells * np.dtype(MEMORY_DTYPES[spec.dtype]).itemsize
