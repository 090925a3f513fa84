"""Which expert weights move where when a placement changes (engine.md 7.6).

A move is one integer array: for every place, the place whose weights it takes. Programs take it as
a run-time input, layer by layer, so that one layer of weights is enough to stage it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsinfer_jax.mesh.expert_placement import Integers, Placement, PlaceSizes


def aligned(new: Placement, old: Placement) -> Placement:
    """`new` with ranks and places renamed so that as few weights as possible move from `old`.

    Loads of ranks are the same up to their names. Ranks are paired greedily by how many experts
    they have in common; on a rank, what it already holds stays in its place.
    """
    rows, tables = [], []
    for layer in range(new.layers):
        target = _aligned_places(new.expert_at[layer], old.expert_at[layer], new.sizes)
        row = np.empty_like(new.expert_at[layer])
        row[target] = new.expert_at[layer]
        rows.append(row)
        tables.append(target[new.copy_table[layer]])
    return Placement(new.sizes, np.stack(rows), np.stack(tables))


def _aligned_places(new: Integers, old: Integers, sizes: PlaceSizes) -> Integers:
    """[places] the place that each place of `new` becomes."""
    shape = (sizes.ranks, sizes.per_rank)
    held, wanted = (_counts_by_rank(row.reshape(shape), sizes.experts) for row in (old, new))
    common = np.minimum(wanted[:, None, :], held[None, :, :]).sum(axis=2)  # [new rank, old rank]
    target = np.empty(sizes.places, np.int32)
    free_new, free_old = np.ones(sizes.ranks, bool), np.ones(sizes.ranks, bool)
    for pair in np.argsort(-common, axis=None, kind="stable"):
        source_rank, target_rank = divmod(int(pair), sizes.ranks)
        if free_new[source_rank] and free_old[target_rank]:
            free_new[source_rank] = free_old[target_rank] = False
            target[source_rank * sizes.per_rank : (source_rank + 1) * sizes.per_rank] = (
                target_rank * sizes.per_rank
                + _kept_places(new.reshape(shape)[source_rank], old.reshape(shape)[target_rank])
            )
    return target


def _counts_by_rank(experts: Integers, count: int) -> NDArray[np.int8]:
    return np.stack([np.bincount(row, minlength=count) for row in experts]).astype(np.int8)


def _kept_places(new: Integers, old: Integers) -> Integers:
    """For each entry of `new`, a place: its own in `old` where `old` holds it, else a free one."""
    place = np.full(new.shape, -1, np.int32)
    free = list(range(len(old)))
    for index, expert in enumerate(new):
        here = next((candidate for candidate in free if old[candidate] == expert), None)
        if here is not None:
            place[index] = here
            free.remove(here)
    place[place < 0] = free
    return place


@dataclass(frozen=True)
class Moves:
    """Which weights move where between two placements, layer by layer (engine.md 7.6).

    Attributes:
        source: [layers, places] int32: the place, in the old placement, whose weights a place
            takes. `new_weights[place] = old_weights[source[place]]` is the whole move; a place that
            keeps its weights names itself.
        transfers: places filled from another rank.
        local: places filled from another place of their own rank, or with what it just received.
    """

    source: Integers
    transfers: int
    local: int


def moves_between(old: Placement, new: Placement) -> Moves:
    """The fewest transfers that lead from `old` to `new`.

    What a rank holds already stays or is copied there; what is missing comes once from the ranks
    that have it, which share the work evenly.
    """
    sources, transfers, local = [], 0, 0
    for before, after in zip(old.expert_at, new.expert_at, strict=True):
        source, received, copied = _layer_moves(before, after, new.sizes)
        sources.append(source)
        transfers += received
        local += copied
    return Moves(np.stack(sources), transfers, local)


def _layer_moves(old: Integers, new: Integers, sizes: PlaceSizes) -> tuple[Integers, int, int]:
    source = np.arange(sizes.places, dtype=np.int32)
    transfers = local = 0
    for expert in np.unique(new[new != old]):
        held = np.flatnonzero(old == expert)
        ranks_with, first = np.unique(sizes.rank_of(held), return_index=True)
        place_on = dict(zip(ranks_with.tolist(), held[first].tolist(), strict=True))
        senders = [place_on[rank] for rank in sorted(place_on)]
        changed = np.flatnonzero((new == expert) & (old != expert))
        ranks = sizes.rank_of(changed).tolist()
        receivers = sorted(set(ranks) - set(place_on))
        for index, rank in enumerate(receivers):
            place_on[rank] = senders[sender(index, len(receivers), len(senders))]
        source[changed] = [place_on[rank] for rank in ranks]
        transfers += len(receivers)
        local += len(changed) - len(receivers)
    return source, transfers, local


def sender(receiver: int, receivers: int, senders: int) -> int:
    """Which of the ranks that hold an expert sends it to the receiver of this number."""
    each = receivers // senders
    if receiver < each * senders:
        return receiver // each
    return receiver - each * senders
