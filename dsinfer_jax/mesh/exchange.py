"""Rows to the devices of their experts, outputs back: three forms of one exchange.

All run inside `shard_map`, over mesh axes whose devices each hold `per_rank` places of experts.
A pair (row, choice) is computed by exactly one device and its output comes back as it was computed,
so the three give the same bits, and the same as one device that holds all experts. No pair is ever
dropped: buffers hold what shapes allow at most.

    gather   everybody sees all rows and computes the pairs of its own places. Few rows, or few
             devices.
    slots    every device has room at every other for all pairs that it could send there; one
             `all_to_all` there and one back.
    ragged   the same with `ragged_all_to_all`, which sends the pairs that there are. TPUs have it,
             CPUs have not, and on GPUs it is not yet reliable among many ranks.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.mesh.bits import move

Array = jax.Array
Axis = str | tuple[str, ...]
# (tree of rows, row of each pair, place of each pair on this device, weight) -> outputs of pairs
Experts = Callable[[Any, Array, Array, Array], Any]


class Exchange(Protocol):
    """Outputs [rows * choices, hidden] of the experts at the places that rows have chosen."""

    def __call__(
        self, rows: Any, places: Array, weights: Array, per_rank: int, axis: Axis, experts: Experts
    ) -> Array:
        """Run `experts` where they are.

        Args:
            rows: tree of leaves [rows, ...].
            places: [rows, choices] int32, counted over all devices of the axes; -1: none.
            weights: [rows, choices] float32.
            per_rank: places of one device.
            axis: of the mesh, or several, counted together.
            experts: runs pairs on this device; a place below 0 gives zeros.
        """


def by_gather(
    rows: Any, places: Array, weights: Array, per_rank: int, axis: Axis, experts: Experts
) -> Array:
    """All rows everywhere; the outputs are sums with one term that is not zero."""
    rows, places, weights = move(
        lambda leaf: lax.all_gather(leaf, axis, tiled=True), (rows, places, weights)
    )
    local = places - lax.axis_index(axis) * per_rank
    local = jnp.where((places >= 0) & (local >= 0) & (local < per_rank), local, -1)
    outputs = experts(rows, _pair_rows(places), local.reshape(-1), weights.reshape(-1))
    return lax.psum_scatter(outputs, axis, tiled=True)


def by_slots(
    rows: Any, places: Array, weights: Array, per_rank: int, axis: Axis, experts: Experts
) -> Array:
    """Room for every pair that a device could send to another."""
    ranks = lax.axis_size(axis)
    sent = _Sent.to(places, per_rank, ranks, _room(places, per_rank))

    def exchanged(leaf: Array) -> Array:
        return lax.all_to_all(leaf, axis, split_axis=0, concat_axis=0, tiled=True)

    received, local, weight = move(exchanged, sent.leaves(rows, places, weights, per_rank))
    outputs = experts(received, jnp.arange(len(local), dtype=jnp.int32), local, weight)
    return move(exchanged, outputs).at[sent.slot].get(mode="fill", fill_value=0)


def by_ragged(
    rows: Any, places: Array, weights: Array, per_rank: int, axis: Axis, experts: Experts
) -> Any:
    """Only the pairs that there are, one behind the other at their devices."""
    ranks = lax.axis_size(axis)
    sent = _Sent.to(places, per_rank, ranks, room=0)
    sizes = lax.all_gather(sent.counts, axis)  # [from, to]
    me = lax.axis_index(axis)
    before = jnp.cumsum(sizes, axis=0) - sizes  # where each sender's pairs begin at a receiver
    there = (sent.starts, sent.counts, before[me], sizes[:, me])
    back_starts = jnp.cumsum(sizes, axis=1) - sizes  # where each receiver's pairs began at a sender
    back = (before[:, me], sizes[:, me], back_starts[:, me], sent.counts)
    most = ranks * _room(places, per_rank)

    def exchanged(leaf: Array, length: int, layout: tuple[Array, ...], fill: Any = 0) -> Array:
        output = jnp.full((length, *leaf.shape[1:]), fill, leaf.dtype)
        return lax.ragged_all_to_all(leaf, output, *layout, axis_name=axis)

    rows, local, weight = sent.leaves(rows, places, weights, per_rank)
    received = move(lambda leaf: exchanged(leaf, most, there), (rows, weight))
    local = exchanged(local, most, there, fill=-1)
    outputs = experts(received[0], jnp.arange(most, dtype=jnp.int32), local, received[1])
    returned = move(lambda leaf: exchanged(leaf, places.size, back), outputs)
    return jax.tree.map(lambda leaf: leaf.at[sent.slot].get(mode="fill", fill_value=0), returned)


def asked_rows(table: Any, rows: Array, axis: Axis) -> Any:
    """Rows of a table that is divided over devices: ids go to who has the row, rows come back.

    Args:
        table: tree of leaves [rows of this device, ...].
        rows: [...] int32, counted over all devices of the axes.

    Returns:
        a tree of leaves [..., ...].
    """
    held = jax.tree.leaves(table)[0].shape[0]

    def read(_rows: Any, _pair_rows: Array, local: Array, _weights: Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[jnp.maximum(local, 0)], table)

    ids = rows.reshape(-1, 1)
    found = by_ragged((), ids, jnp.zeros(ids.shape, jnp.float32), held, axis, read)
    return jax.tree.map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), found)


EXCHANGES: dict[str, Exchange] = {"gather": by_gather, "slots": by_slots, "ragged": by_ragged}


def exchange_for(name: str, platform: str) -> Exchange:
    """The exchange of a name; "auto": what suits a platform.

    Raises:
        ValueError: the platform has no such collective.
    """
    if name == "auto":
        name = "ragged" if platform == "tpu" else "slots"
    if name == "ragged" and platform == "cpu":
        raise ValueError(
            "exchange is 'ragged', for which CPUs have no collective; use 'slots' or 'gather'"
        )
    return EXCHANGES[name]


def _room(places: Array, per_rank: int) -> int:
    """Most pairs that one device can send to another: a row's choices differ."""
    rows, choices = places.shape
    return rows * min(choices, per_rank)


class _Sent:
    """Pairs in the order in which they are sent: by device, and in order for each.

    Attributes:
        pair: [slots] int32, the pair at each place of the send buffer; past the end: nobody.
        slot: [pairs] int32, the place of each pair; past the end for pairs without an expert.
        counts, starts: [ranks] int32, pairs for each device and where they begin.
    """

    def __init__(self, pair: Array, slot: Array, counts: Array, starts: Array) -> None:
        self.pair, self.slot, self.counts, self.starts = pair, slot, counts, starts

    @classmethod
    def to(cls, places: Array, per_rank: int, ranks: int, room: int) -> "_Sent":
        """Buffers with the same room for every device, or (0) one behind the other."""
        pairs = places.size
        flat = places.reshape(-1)
        device = jnp.where(flat >= 0, flat // per_rank, ranks)
        member = device[:, None] == jnp.arange(ranks)
        counts = jnp.sum(member, axis=0, dtype=jnp.int32)
        starts = jnp.cumsum(counts) - counts
        slots = pairs
        if room:
            starts, slots = jnp.arange(ranks, dtype=jnp.int32) * room, ranks * room
        rank = jnp.sum(jnp.where(member, jnp.cumsum(member, axis=0) - 1, 0), axis=1)
        begin = starts.at[device].get(mode="fill", fill_value=slots)
        slot = jnp.where(device < ranks, begin + rank, slots).astype(jnp.int32)
        every = jnp.arange(pairs, dtype=jnp.int32)
        pair = jnp.full(slots, pairs, jnp.int32).at[slot].set(every, mode="drop")
        return cls(pair, slot, counts, starts.astype(jnp.int32))

    def leaves(
        self, rows: Any, places: Array, weights: Array, per_rank: int
    ) -> tuple[Any, Array, Array]:
        """Rows, local places (-1: none) and weights in the order of the buffer."""
        local = jnp.where(places < 0, -1, places % per_rank)

        def of_pairs(values: Array, nobody: Any) -> Array:
            return values.reshape(-1).at[self.pair].get(mode="fill", fill_value=nobody)

        row = of_pairs(_pair_rows(places), places.shape[0])
        by_slot = move(lambda leaf: leaf.at[row].get(mode="fill", fill_value=0), rows)
        return by_slot, of_pairs(local, -1), of_pairs(weights, 0.0)


def _pair_rows(places: Array) -> Array:
    rows, choices = places.shape
    return lax.broadcasted_iota(jnp.int32, (rows, choices), 0).reshape(-1)
