"""Run by sharded_load_test.py on eight emulated devices: loads a folder whole and in places.

Checks that both are the same bits, and prints as JSON what was read and held on the host.
"""

import json
import sys
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dsinfer_jax.checkpoint import LeafPlace, leaf_reader, load_pretrained
from dsinfer_jax.model.parameter_table import TensorSpec, parameter_table
from dsinfer_jax.model.params import leaf_at

MESH = jax.make_mesh((4, 2), ("expert", "inner"), axis_types=(AxisType.Auto,) * 2)


def sharding_of(spec: TensorSpec) -> NamedSharding:
    """Expert codes over both axes; of other leaves the first dimension eight devices can share."""
    if spec.dtype == "I8" and spec.experts == 8:
        names = {"experts": "expert", "ffn": "inner"}
        axes = [names.get(str(axis)) for axis in spec.stacked_axes]
        return NamedSharding(MESH, PartitionSpec(*axes))
    for dimension, size in enumerate(spec.stacked_shape):
        if size % 8 == 0:
            axes = [None] * dimension
            return NamedSharding(MESH, PartitionSpec(*axes, ("expert", "inner")))
    return NamedSharding(MESH, PartitionSpec())


class CountedBytes:
    """Stands in for the progress bar."""

    read = total = 0

    def __init__(self, _: str, total: int) -> None:
        CountedBytes.total = total

    def add(self, count: int) -> None:
        CountedBytes.read += count

    def close(self) -> None:
        pass


def main(folder: str) -> None:
    assert len(jax.devices()) == 8
    _, whole = load_pretrained(folder)
    buffers = []
    read = leaf_reader.LeafReader.read

    def counted(self: Any, spec: TensorSpec, expert_at: Any, bounds: Any) -> np.ndarray:
        values = read(self, spec, expert_at, bounds)
        buffers.append(values.nbytes)
        return values

    with (
        mock.patch.object(leaf_reader.LeafReader, "read", counted),
        mock.patch.object(leaf_reader, "Progress", CountedBytes),
    ):
        config, sharded = load_pretrained(folder, place=lambda spec: LeafPlace(sharding_of(spec)))

    slices, leaves = [], []
    for spec in parameter_table(config):
        one, other = leaf_at(whole, spec), leaf_at(sharded, spec)
        assert other.sharding == sharding_of(spec), spec
        assert (one.dtype, one.shape) == (other.dtype, other.shape), spec
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), spec
        count = len({str(shard.index) for shard in other.addressable_shards})
        leaves.append(one.nbytes)
        slices += [one.nbytes // count] * count
    assert CountedBytes.read == CountedBytes.total
    print(
        json.dumps(
            {"read": CountedBytes.read, "leaves": leaves, "slices": slices, "buffers": buffers}
        )
    )


main(sys.argv[1])
