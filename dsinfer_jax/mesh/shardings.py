"""Layouts as meshes of devices, logical axes as shardings."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from dsinfer_jax.mesh.layout import AXES, LayoutError, MeshLayout
from dsinfer_jax.mesh.rules import RULES, mesh_axes


def device_mesh(layout: MeshLayout, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of a layout over the first devices, or over these.

    Axes are left to `shard_map`, in which every collective is written out.

    Raises:
        LayoutError: too few devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    if len(devices) < layout.devices:
        raise LayoutError(
            f"{layout} takes {layout.devices} devices, and there are {len(devices)}; use a smaller "
            "layout, or emulate devices with XLA_FLAGS=--xla_force_host_platform_device_count=N"
        )
    grid = np.asarray(devices[: layout.devices]).reshape(layout.shape)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def layout_of(mesh: Mesh) -> MeshLayout:
    """The layout that a mesh was made of."""
    return MeshLayout(*(int(mesh.shape[axis]) for axis in AXES))


def partition(logical: Iterable[str | None], phase: str) -> P:
    """Where the dimensions of an array lie, by their logical axes."""
    return P(*(axes or None for axes in mesh_axes(logical, phase)))


def along(logical: str, phase: str) -> tuple[str, ...]:
    """Mesh axes of one logical axis."""
    return RULES[phase][logical]


def placed(tree: Any, mesh: Mesh, specs: Any) -> Any:
    """A tree of arrays on a mesh, of which every process has the whole.

    Args:
        specs: a tree of `PartitionSpec`s, or one for all leaves.
    """
    if isinstance(specs, P):
        specs = jax.tree.map(lambda _: specs, tree)
    return jax.tree.map(lambda leaf, spec: put(leaf, NamedSharding(mesh, spec)), tree, specs)


def put(leaf: Any, place: Sharding | Format) -> jax.Array:
    """An array, of which every process has the whole, where and how it belongs."""
    sharding = place.sharding if isinstance(place, Format) else place
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(leaf, place)
    host = np.asarray(leaf)  # `device_put` would send it to all hosts to compare
    return jax.make_array_from_callback(
        host.shape, place, lambda index: host[index], dtype=host.dtype
    )
