"""Run by sharded_load_test.py on eight emulated devices: loads a folder whole and sharded.

Checks that both are the same bits, and prints as JSON what was read and held on the host.
"""

import json
import sys
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dsinfer_jax.checkpoint import load, load_pretrained
from dsinfer_jax.model.parameter_table import TensorSpec, parameter_table
from dsinfer_jax.model.params import leaf_at

MESH = jax.make_mesh((4, 2), ("expert", "inner"), axis_types=(AxisType.Auto,) * 2)


def place(spec: TensorSpec) -> NamedSharding:
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

    read = 0

    def __init__(self, *_: Any) -> None:
        pass

    def add(self, count: int) -> None:
        CountedBytes.read += count

    def close(self) -> None:
        pass


def main(folder: str) -> None:
    assert len(jax.devices()) == 8
    _, whole = load_pretrained(folder)
    buffers = []
    read = load._LeafReader.read

    def counted(self: Any, spec: TensorSpec, index: Any) -> np.ndarray:
        values = read(self, spec, index)
        buffers.append(values.nbytes)
        return values

    with (
        mock.patch.object(load._LeafReader, "read", counted),
        mock.patch.object(load, "Progress", CountedBytes),
    ):
        config, sharded = load_pretrained(folder, sharding=place)

    slices, leaves = [], []
    for spec in parameter_table(config):
        one, other = leaf_at(whole, spec), leaf_at(sharded, spec)
        assert other.sharding == place(spec), spec
        assert (one.dtype, one.shape) == (other.dtype, other.shape), spec
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), spec
        if spec.name:
            count = len({str(shard.index) for shard in other.addressable_shards})
            leaves.append(one.nbytes)
            slices += [one.nbytes // count] * count
    print(
        json.dumps(
            {"read": CountedBytes.read, "leaves": leaves, "slices": slices, "buffers": buffers}
        )
    )


main(sys.argv[1])
