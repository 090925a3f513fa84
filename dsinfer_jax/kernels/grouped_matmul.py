"""Products of rows with the matrices of their experts (model.md 9).

Rows are sorted by expert and each expert's rows are padded to whole tiles; a loop runs over the
tiles in use and reads one expert's matrix per tile. Only chosen experts are read, whatever the
number of experts. `lax.ragged_dot` is no substitute on the CPU, where it multiplies every row with
every expert (jax-practice.md 8.1).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.kernels import block_formats

Array = jax.Array

COLUMN_MULTIPLE = 64


class Groups(NamedTuple):
    """Pairs (row, choice) sorted by expert into tiles."""

    source: Array  # [tiles * tile] int32: pair at each place, `pairs` where the place is empty
    place: Array  # [pairs] int32: place of each pair; past the end for pairs without an expert
    tile_expert: Array  # [tiles] int32
    tiles_used: Array  # [] int32


def group_pairs(expert_ids: Array, experts: int, tile: int) -> Groups:
    """Sort pairs by expert. expert_ids [pairs] int32; an id of `experts` or more takes no part."""
    pairs = expert_ids.shape[0]
    tiles = -(-pairs // tile) + min(experts, pairs)
    order = jnp.argsort(expert_ids, stable=True).astype(jnp.int32)
    counts = jnp.sum(expert_ids[:, None] == jnp.arange(experts), axis=0, dtype=jnp.int32)
    padded = -(-counts // tile) * tile
    ends = jnp.cumsum(padded)
    starts = ends - padded
    sorted_ids = jnp.minimum(expert_ids[order], experts - 1)
    rank = jnp.arange(pairs, dtype=jnp.int32) - (jnp.cumsum(counts) - counts)[sorted_ids]
    sorted_place = jnp.where(
        expert_ids[order] < experts, starts[sorted_ids] + rank, tiles * tile
    ).astype(jnp.int32)
    source = jnp.full(tiles * tile, pairs, jnp.int32).at[sorted_place].set(order, mode="drop")
    place = jnp.zeros(pairs, jnp.int32).at[order].set(sorted_place)
    first_rows = jnp.arange(tiles, dtype=jnp.int32) * tile
    tile_expert = jnp.sum(first_rows[:, None] >= ends, axis=1, dtype=jnp.int32)
    return Groups(source, place, jnp.minimum(tile_expert, experts - 1), ends[-1] // tile)


def grouped_matmul(
    x: Array, weight: Array, scale: Array, layer: Array | int, groups: Groups
) -> Array:
    """x . W_expert^T for every tile in use; places of unused tiles are zero.

    Args:
        x: [tiles * tile, in], bf16 or float32.
        weight: [layers, experts, out, in / 2] packed e2m1.
        scale: [layers, experts, out, in / 32] ue8m0 bytes.
        layer: which layer's experts.

    Returns:
        float32 [tiles * tile, out].
    """
    tiles = groups.tile_expert.shape[0]
    tile = x.shape[0] // tiles
    columns = weight.shape[2]
    padding = -columns % COLUMN_MULTIPLE

    def one_tile(number: Array, result: Array) -> Array:
        expert = groups.tile_expert[number]
        matrix = block_formats.decode_e2m1_rows(
            weight[layer, expert], scale[layer, expert], x.dtype
        )
        rows = lax.dynamic_slice_in_dim(x, number * tile, tile)
        product = lax.dot_general(
            rows,
            jnp.pad(matrix, ((0, padding), (0, 0))),
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return lax.dynamic_update_slice_in_dim(result, product[:, :columns], number * tile, 0)

    result = jnp.zeros((x.shape[0], columns), jnp.float32)
    return lax.fori_loop(0, groups.tiles_used, one_tile, result)
