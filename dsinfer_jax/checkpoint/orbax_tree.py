"""The parameter tree on a mesh to Orbax, and from there onto any other mesh.

What is stored depends on no mesh: experts by number, each once, and tables without padding. A leaf
of which every device has some experts or rows is therefore turned on its way: divided along another
of its dimensions, so that every device has a part of each of them and can put them in order by
itself. Such leaves come in parts, so only a part is on the devices twice.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from dsinfer_jax.checkpoint.errors import CheckpointError
from dsinfer_jax.checkpoint.manifest import MANIFEST_NAME, ORBAX, Manifest, read_manifest
from dsinfer_jax.checkpoint.places import LeafPlace, PlaceRule
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec, parameter_table
from dsinfer_jax.model.params import Array, Params, build_tree, leaf_at

_COMMON = "common"  # the part of all leaves that need no turning
_PART_BYTES = 8 << 30  # of leaves that are turned together, unless one has more
Local = Callable[[Array, Any], Array]  # (a device's part, index) -> the same in another order


def save_orbax(
    folder: str | Path,
    params: Params,
    config: ModelConfig,
    *,
    place: PlaceRule | None = None,
    source: str | Path | None = None,
) -> None:
    """Save a tree as it lies on its devices; every process of a mesh calls this.

    Args:
        folder: does not exist, or is empty. Shared by all processes.
        params: the tree, which stays as it is.
        place: where its leaves lie; None, or a leaf it answers None for: on jax's default device.
        source: the checkpoint that the tree was loaded from, so that a later one is noticed.

    Raises:
        CheckpointError: the folder holds something.
    """
    folder = Path(folder).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(
            f"{folder} holds something already; name a folder that does not exist"
        )
    manifest = Manifest.of(ORBAX, config, None if source is None else Path(source))
    _meet("every process has found the folder empty")
    for name, specs in _parts(config).items():
        leaves = {}
        for spec in specs:
            leaf, where = leaf_at(params, spec), _place(spec, place)
            leaves[spec.dotted] = _ordered(leaf, spec, where) if _turns(spec) else leaf
        _save(folder / name, leaves)
    if jax.process_index() == 0:
        manifest.write(folder)
    _meet("the manifest is written")


def load_orbax(
    folder: str | Path,
    config: ModelConfig,
    *,
    place: PlaceRule | None = None,
    source: str | Path | None = None,
) -> Params:
    """Load a tree onto any mesh; every process of the mesh calls this.

    Args:
        place: where its leaves are to lie, as in `load_pretrained`.
        source: the checkpoint that it must have come from; None: not compared.

    Raises:
        CheckpointError: the folder holds no complete tree of this configuration, or a stale one.
    """
    folder = Path(folder).absolute()
    manifest = read_manifest(folder)
    if manifest.form != ORBAX:
        raise CheckpointError(
            f"{folder / MANIFEST_NAME} says that it holds {manifest.form}; name one that was saved "
            "with Orbax"
        )
    manifest.check(folder, config, None if source is None else Path(source))
    found: dict[str, Array] = {}
    for name, specs in _parts(config).items():
        targets = {spec.dotted: _target(spec, _place(spec, place)) for spec in specs}
        leaves = _load(folder / name, targets)
        for spec in specs:
            leaf, where = leaves.pop(spec.dotted), _place(spec, place)
            leaf = _placed(leaf, spec, where) if _turns(spec) else leaf
            found[spec.dotted] = where.laid_out(leaf)
    return build_tree(config, lambda spec: found[spec.dotted])


def _parts(config: ModelConfig) -> Mapping[str, list[TensorSpec]]:
    """Orbax checkpoints by name, and the leaves in each: the same for every mesh."""
    parts: dict[str, list[TensorSpec]] = {_COMMON: []}
    name, room = "", 0
    for spec in parameter_table(config):
        if not _turns(spec):
            parts[_COMMON].append(spec)
            continue
        if not name or spec.nbytes > room:
            name, room = f"part{len(parts)}", _PART_BYTES
            parts[name] = []
        parts[name].append(spec)
        room -= spec.nbytes
    return parts


def _turns(spec: TensorSpec) -> bool:
    """Meshes may hold the leaf in another order, or with more rows."""
    return spec.experts is not None or "engram_rows" in spec.axes


def _place(spec: TensorSpec, rule: PlaceRule | None) -> LeafPlace:
    place = rule(spec) if rule else None
    return place or LeafPlace(SingleDeviceSharding(*jnp.zeros(()).devices()))


def _target(spec: TensorSpec, place: LeafPlace) -> jax.ShapeDtypeStruct:
    """What Orbax is asked for."""
    sharding = _turned(spec, place) if _turns(spec) else place.sharding
    dtype = MEMORY_DTYPES[spec.dtype]
    return jax.ShapeDtypeStruct(spec.stacked_shape, dtype, sharding=sharding)


def _turned(spec: TensorSpec, place: LeafPlace) -> Sharding:
    """How a leaf is divided while its experts or rows are put in order: along a dimension of each
    expert or row, among as many devices as divide it evenly."""
    if not isinstance(place.sharding, NamedSharding):
        return place.sharding
    mesh, ordered = place.sharding.mesh, _ordered_dimension(spec)
    axes = place.sharding.spec[ordered] or ()
    axes = (axes,) if isinstance(axes, str) else axes
    best: tuple[int, P] = (1, P())
    for dimension, size in enumerate(spec.stacked_shape):
        for count in range(1, len(axes) + 1):
            for some in combinations(axes, count):
                devices = math.prod(mesh.shape[axis] for axis in some)
                if dimension > ordered and size % devices == 0 and devices > best[0]:
                    best = devices, P(*[None] * dimension, some)
    return NamedSharding(mesh, best[1])


def _ordered_dimension(spec: TensorSpec) -> int:
    """Of the experts, or of the rows of a table."""
    return 0 if spec.experts is None else len(spec.stacked_shape) - len(spec.shape) - 1


def _ordered(leaf: Array, spec: TensorSpec, place: LeafPlace) -> Array:
    """A leaf in its places as it is stored."""
    turned = _turned(spec, place)
    if place.expert_at is not None:
        numbers = np.arange(spec.experts or 0)[:, None]
        first_place = np.argmax(place.expert_at[:, None, :] == numbers, axis=2)
        return _turning(_take_experts, turned, turned)(leaf, first_place.astype(np.int32))
    return _turning(partial(_with_rows, spec.stacked_shape[0]), turned, turned)(leaf, None)


def _placed(leaf: Array, spec: TensorSpec, place: LeafPlace) -> Array:
    """A stored leaf, which is turned, in its places."""
    turned = _turned(spec, place)
    if place.expert_at is not None:
        index = place.expert_at.astype(np.int32)
        return _turning(_take_experts, turned, place.sharding)(leaf, index)
    rows = place.shape(spec)[0]
    return _turning(partial(_with_rows, rows), turned, place.sharding)(leaf, None)


@cache
def _turning(local: Local, turned: Sharding, after: Sharding) -> Callable[[Array, Any], Array]:
    """A program that turns a leaf, lets every device put its part in order, and turns it again."""

    def program(leaf: Array, index: Any) -> Array:
        order = local
        if isinstance(turned, NamedSharding):
            leaf = jax.lax.with_sharding_constraint(leaf, turned)
            order = jax.shard_map(
                local, mesh=turned.mesh, in_specs=(turned.spec, P()), out_specs=turned.spec,
                check_vma=False,
            )  # fmt: skip
        return order(leaf, index)

    return jax.jit(program, out_shardings=after)


def _take_experts(leaf: Array, expert_at: Array) -> Array:
    return leaf[jnp.arange(leaf.shape[0])[:, None], expert_at]


def _with_rows(rows: int, leaf: Array, _: None) -> Array:
    """So many rows: cut, or with zeros behind."""
    if rows <= leaf.shape[0]:
        return leaf[:rows]
    return jnp.pad(leaf, ((0, rows - leaf.shape[0]), (0, 0)))


def _meet(what: str) -> None:
    """Wait for the other processes."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def _save(folder: Path, leaves: dict[str, Array]) -> None:
    import orbax.checkpoint as ocp  # a second of imports

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False)) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(leaves))


def _load(folder: Path, targets: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    import orbax.checkpoint as ocp

    arguments = ocp.args.PyTreeRestore(
        item=targets, restore_args=ocp.checkpoint_utils.construct_restore_args(targets)
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(folder, args=arguments)
