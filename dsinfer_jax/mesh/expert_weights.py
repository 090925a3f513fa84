"""Moving the weights of experts between devices while serving (engine.md 7.6).

A program moves one layer: between two steps it is short, and one layer of weights is all that is
staged. Which weights move is its input (`expert_moves.Moves.source`), so nothing is compiled when a
placement changes. A copy table may name a layer's new places once its move has been handed to the
devices: programs run in the order in which they are handed over.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from dsinfer_jax.mesh.rules import RULES

Array = jax.Array
Tree = TypeVar("Tree")
AXES = RULES["decode"]["experts"]  # the same in both phases


def in_places(experts: Tree, expert_at: np.ndarray) -> Tree:
    """Experts [layers, experts, ...] copied to their places: leaves [layers, places, ...]."""
    layer = np.arange(expert_at.shape[0])[:, None]
    return jax.tree.map(lambda leaf: leaf[layer, expert_at], experts)


def move_layer(experts: Tree, layer: Array, source: Array, mesh: Mesh) -> Tree:
    """The tree with one layer's weights moved; jit it with `experts` donated.

    Args:
        experts: leaves [layers, places, ...], divided over their places.
        layer: [] int32.
        source: [places] int32, the place whose weights each place takes.
    """
    divided = P(None, AXES)

    def local(experts: Tree, layer: Array, source: Array) -> Tree:
        return jax.tree.map(lambda leaf: _moved(leaf, layer, source), experts)

    return jax.shard_map(
        local, mesh=mesh, in_specs=(divided, P(), P()), out_specs=divided, check_vma=False
    )(experts, layer, source)


def _moved(leaf: Array, layer: Array, source: Array) -> Array:
    """Every place that changes is sent by who has its weights to all, and kept by who needs it."""
    per_rank, me = leaf.shape[1], lax.axis_index(AXES)
    before = leaf[layer]

    def one_place(place: Array, after: Array) -> Array:
        origin = source[place]

        def moved() -> Array:
            mine = origin // per_rank == me
            sent = jnp.where(mine, before[origin % per_rank], jnp.zeros_like(before[0]))
            arrived = lax.psum(sent, AXES)  # one term is not zero
            here = place // per_rank == me
            kept = after[place % per_rank]
            return after.at[place % per_rank].set(jnp.where(here, arrived, kept))

        return lax.cond(origin == place, lambda: after, moved)

    after = lax.fori_loop(0, source.shape[0], one_place, before)
    return leaf.at[layer].set(after)


def move_program(experts: Any, mesh: Mesh) -> Any:
    """`move_layer` compiled for a tree, called with (experts, layer, source); experts are given
    away."""

    def move(experts: Any, layer: Array, source: Array) -> Any:
        return move_layer(experts, layer, source, mesh)

    places = jax.tree.leaves(experts)[0].shape[1]
    formats = jax.tree.map(lambda leaf: leaf.format, experts)
    layer = jax.ShapeDtypeStruct((), jnp.int32)
    source = jax.ShapeDtypeStruct((places,), jnp.int32)
    program = jax.jit(
        move, donate_argnums=0, in_shardings=(formats, None, None), out_shardings=formats
    )
    return program.lower(experts, layer, source).compile()
