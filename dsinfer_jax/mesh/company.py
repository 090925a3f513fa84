"""The company of one device of a mesh: what `model.company.Company` asks for, with collectives.

Everything here runs inside `shard_map` over all axes of the mesh.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import register_dataclass

from dsinfer_jax.mesh.bits import move
from dsinfer_jax.mesh.exchange import Exchange, Experts, asked_rows, by_ragged
from dsinfer_jax.mesh.expert_placement import COPY_KEYS
from dsinfer_jax.mesh.layout import AXES
from dsinfer_jax.mesh.rules import RULES

Array = jax.Array
Tree = TypeVar("Tree")
CONTEXT = "context"
EXPERTS = RULES["decode"]["experts"]  # the same in both phases


@register_dataclass
@dataclass(frozen=True)
class CopyTables:
    """Where the copies of experts are, as inputs of a step (`mesh.expert_placement`).

    Attributes:
        backbone: [layers, experts, COPY_KEYS] int32, the place for rows with a copy key.
        draft: the same of the draft block; None: no draft block.
    """

    backbone: Array
    draft: Array | None


@dataclass(frozen=True)
class MeshCompany:
    """One device among others.

    Attributes:
        exchange: how rows come to experts.
        tables: where experts are.
        places: of the backbone's and of the draft's experts on one device.
        tile_rows: rows of a tile in the step's plan; context shares are whole tiles.
    """

    exchange: Exchange
    tables: CopyTables
    places: tuple[int, int]
    tile_rows: int

    def own_rows(self, step_rows: Tree, consumer: bool) -> Tree:
        if lax.axis_size(CONTEXT) == 1:
            return step_rows

        def own(leaf: Array) -> Array:
            tiles = leaf.reshape(-1, self.tile_rows, *leaf.shape[1:])
            shares = jnp.asarray(shares_of(len(tiles), lax.axis_size(CONTEXT)))
            mine = tiles[shares[lax.axis_index(CONTEXT)]]
            return mine.reshape(-1, *leaf.shape[1:])

        return jax.tree.map(own, step_rows)

    def step_rows(self, own: Tree, consumer: bool) -> Tree:
        if lax.axis_size(CONTEXT) == 1:
            return own

        def whole(leaf: Array) -> Array:
            tiles = leaf.reshape(-1, self.tile_rows, *leaf.shape[1:])
            gathered = lax.all_gather(tiles, CONTEXT, tiled=True)
            order = np.argsort(shares_of(len(gathered), lax.axis_size(CONTEXT)).reshape(-1))
            return gathered[jnp.asarray(order)].reshape(-1, *leaf.shape[1:])

        return move(whole, own)

    def rows_at(self, own: Tree, rows: Array) -> Tree:
        size = lax.axis_size(CONTEXT)
        if size == 1:
            return jax.tree.map(lambda leaf: leaf[rows], own)

        def at(leaf: Array) -> Array:
            shares = shares_of(len(leaf) * size // self.tile_rows, size)
            place = np.empty(shares.size, np.int32)  # of a tile, among all shares
            place[shares.reshape(-1)] = np.arange(shares.size)
            tile = jnp.asarray(place)[rows // self.tile_rows]
            mine = tile // shares.shape[1] == lax.axis_index(CONTEXT)
            row = tile % shares.shape[1] * self.tile_rows + rows % self.tile_rows
            found = leaf[jnp.where(mine, row, 0)]
            found = jnp.where(mine.reshape(-1, *[1] * (leaf.ndim - 1)), found, 0)
            return lax.psum(found, CONTEXT).astype(leaf.dtype)  # one term is not zero

        return jax.tree.map(at, own)

    def routed(
        self,
        rows: Any,
        chosen: Array,
        weights: Array,
        names: Any,
        layer: Array | int,
        of_draft: bool,
        experts: Experts,
    ) -> Array:
        table = self.tables.draft if of_draft else self.tables.backbone
        assert table is not None
        keys = copy_keys(names.positions, names.token_ids, layer)
        places = table[layer, jnp.maximum(chosen, 0), keys[:, None]]
        places = jnp.where(chosen < 0, -1, places)
        return self.exchange(rows, places, weights, self.places[of_draft], EXPERTS, experts)

    def table_rows(self, table: Any, rows: Array) -> Any:
        """Every device looks up what it holds for everybody, and sends it to who has asked; where
        exchanges send what there is, only to them."""
        if self.exchange is by_ragged:
            return asked_rows(table, rows, AXES)
        asked = lax.all_gather(rows, AXES)  # [devices, rows, columns]
        held = jax.tree.leaves(table)[0].shape[0]
        local = asked - lax.axis_index(AXES) * held
        here = (local >= 0) & (local < held)

        def read(leaf: Array) -> Array:
            found = leaf[jnp.where(here, local, 0)]
            answers = lax.all_to_all(found, AXES, split_axis=0, concat_axis=0, tiled=True)
            owner = (rows // held)[None, ..., None]
            return jnp.take_along_axis(answers, owner, axis=0)[0]

        return move(read, table)


def copy_keys(positions: Array, token_ids: Array, layer: Array | int) -> Array:
    """`expert_placement.copy_key` on the device: [rows] int32 below COPY_KEYS."""
    word = jnp.uint32
    mixed = positions.astype(word) * word(0x9E3779B1)
    mixed ^= token_ids.astype(word) * word(0x85EBCA77) + jnp.asarray(layer, word) * word(0xC2B2AE3D)
    mixed ^= mixed >> 15
    mixed *= word(0x2C1B3C6D)
    mixed ^= mixed >> 13
    return ((mixed >> 8) % word(COPY_KEYS)).astype(jnp.int32)


def shares_of(tiles: int, size: int) -> np.ndarray:
    """Tiles of each device of a context group: [size, tiles / size] int32, ascending.

    Forth and back, 0 1 2 2 1 0 0 1 2 ...: the mirror split of engine.md 8 in its finest grain, so
    that every device has as many early tiles, which see few keys, as late ones.

    Raises:
        ValueError: the tiles cannot be divided evenly.
    """
    if tiles % size:
        raise ValueError(
            f"a step has {tiles} tiles of rows; a context of {size} devices needs a multiple of "
            f"{size}: use other row counts"
        )
    forth = np.arange(tiles) % size
    back = np.arange(tiles) // size % 2 == 1
    owner = np.where(back, size - 1 - forth, forth)
    return np.stack([np.flatnonzero(owner == rank) for rank in range(size)]).astype(np.int32)
