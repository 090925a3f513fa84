"""Where the weights of routed experts lie on the ranks of an expert group (engine.md 7.2, 7.3).

A layer has E logical experts and P physical *places*, the same number on every rank: rank g owns
the places [g P/ranks, (g + 1) P/ranks). Hot experts have copies in several places. A placement is
two integer arrays, which are run-time inputs of the programs: changing them compiles nothing.

This module knows integers only: no weights, no devices, no loads (`expert_loads`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]

COPY_KEYS = 120  # entries of an expert in the copy table; 1 to 6, 8 and 10 copies divide it evenly


@dataclass(frozen=True)
class PlaceSizes:
    """How many places a layer has.

    Attributes:
        experts: logical experts.
        redundant: places beyond one for each expert.
        ranks: ranks of the expert group.
    """

    experts: int
    redundant: int
    ranks: int

    @classmethod
    def of(cls, experts: int, requested: int, ranks: int) -> "PlaceSizes":
        """The smallest number of redundant places, at least `requested` in total over all ranks,
        with which every rank has equally many (engine.md 7.3).

        Raises:
            ValueError: a number is out of range.
        """
        for name, value, least in (
            ("experts", experts, 1),
            ("requested", requested, 0),
            ("ranks", ranks, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}; it must be {least} or more")
        return cls(experts, requested + (-(experts + requested)) % ranks, ranks)

    @property
    def places(self) -> int:
        return self.experts + self.redundant

    @property
    def per_rank(self) -> int:
        return self.places // self.ranks

    def rank_of(self, places: Integers) -> Integers:
        return places // self.per_rank


@dataclass(frozen=True)
class Placement:
    """Places of the experts of several layers.

    Attributes:
        sizes: numbers of experts, places and ranks.
        expert_at: [layers, places] int32, the expert whose weights lie in a place.
        copy_table: [layers, experts, COPY_KEYS] int32, the place to which a row with a copy key
            goes. A copy with a larger share of the entries gets a larger share of the rows; copies
            beyond COPY_KEYS of one expert get none.
    """

    sizes: PlaceSizes
    expert_at: Integers
    copy_table: Integers

    @property
    def layers(self) -> int:
        return self.expert_at.shape[0]

    @property
    def copies(self) -> Integers:
        """[layers, experts] int32: how many places each expert has."""
        return np.stack(
            [np.bincount(row, minlength=self.sizes.experts) for row in self.expert_at]
        ).astype(np.int32)

    def shares(self) -> Floats:
        """[layers, experts, ranks]: the share of an expert's rows that each rank computes."""
        sizes = self.sizes
        shares = np.zeros((self.layers, sizes.experts, sizes.ranks))
        layer = np.arange(self.layers)[:, None, None]
        expert = np.arange(sizes.experts)[:, None]
        np.add.at(shares, (layer, expert, sizes.rank_of(self.copy_table)), 1 / COPY_KEYS)
        return shares

    def check(self) -> None:
        """Raise ValueError, naming layer and expert, if an expert has no place, or the copy table
        sends rows to a place that holds another expert."""
        for layer, experts in enumerate(self.copies):
            for expert in np.flatnonzero(experts == 0).tolist():
                raise ValueError(f"expert {expert} of layer {layer} has no place")
        layers = np.arange(self.layers)[:, None, None]
        found = self.expert_at[layers, self.copy_table]
        wrong = found != np.arange(self.sizes.experts)[:, None]
        for layer, expert, key in np.argwhere(wrong).tolist():
            raise ValueError(
                f"copy {key} of expert {expert} of layer {layer} is place "
                f"{self.copy_table[layer, expert, key]}, which holds expert "
                f"{found[layer, expert, key]}"
            )


def first_expert_at(sizes: PlaceSizes, layers: int) -> Integers:
    """[layers, places]: the experts in order, then the first ones again (engine.md 7.3)."""
    row = np.arange(sizes.places, dtype=np.int32)
    row[sizes.experts :] = (row[sizes.experts :] - sizes.experts) % sizes.experts
    return np.tile(row, (layers, 1))


def first_placement(sizes: PlaceSizes, layers: int) -> Placement:
    """The placement before any load is known: the same in every layer."""
    return even_placement(sizes, first_expert_at(sizes, layers))


def even_placement(sizes: PlaceSizes, expert_at: Integers) -> Placement:
    """The placement in which all copies of an expert get equal shares."""
    return shared_placement(sizes, expert_at, np.ones(expert_at.shape))


def shared_placement(sizes: PlaceSizes, expert_at: Integers, shares: Floats) -> Placement:
    """The placement in which the copies of an expert get shares in proportion to `shares`.

    Args:
        expert_at: [layers, places] int32.
        shares: [layers, places], not negative; rounded to parts of COPY_KEYS, largest remainder
            first.

    Raises:
        ValueError: an expert has no place.
    """
    pairs = zip(expert_at, shares, strict=True)
    table = np.stack([_copy_table(row, share, sizes) for row, share in pairs])
    return Placement(sizes, expert_at, table)


def _copy_table(expert_at: Integers, shares: Floats, sizes: PlaceSizes) -> Integers:
    counts = np.bincount(expert_at, minlength=sizes.experts)
    if not counts.all():
        raise ValueError(f"expert {int(np.argmin(counts))} has no place; give every expert one")
    wanted = COPY_KEYS * normalised(shares, expert_at)
    entries = np.floor(wanted + 1e-9).astype(np.int64)
    missing = COPY_KEYS - np.bincount(expert_at, weights=entries).astype(np.int64)
    # places by expert, largest remainder first: the first `missing` of each get one entry more
    order = np.lexsort((-np.round(wanted - entries, 9), expert_at))
    number = np.arange(sizes.places) - np.repeat(np.cumsum(counts) - counts, counts)
    entries[order] += number < missing[expert_at[order]]
    by_expert = np.argsort(expert_at, kind="stable").astype(np.int32)
    return np.repeat(by_expert, entries[by_expert]).reshape(sizes.experts, COPY_KEYS)


def normalised(shares: Floats, expert_at: Integers) -> Floats:
    """[places] shares scaled so that those of an expert sum to 1; equal where all are zero."""
    totals = np.bincount(expert_at, weights=shares)[expert_at]
    equal = 1 / np.bincount(expert_at)[expert_at]
    return np.where(totals > 0, shares / np.where(totals > 0, totals, 1), equal)


def copy_key(position: Integers, token: Integers, layer: int) -> Integers:
    """Which entry of the copy table each row reads: [rows] int32 below COPY_KEYS.

    A mix of the row's position and token id: it does not depend on the batch, on the row's place
    in it or on the rank, so that a token is computed by the same copy whatever else runs. Copies
    hold equal bits; the choice only spreads load. Sequences in step with each other (equal
    positions) are told apart by their tokens, and layers by a constant, so that one unlucky token
    is not unlucky everywhere. Only multiplications and shifts of uint32: the same on a device.
    """
    mixed = position.astype(np.uint32) * np.uint32(0x9E3779B1)
    mixed ^= token.astype(np.uint32) * np.uint32(0x85EBCA77) + np.uint32(
        (layer * 0xC2B2AE3D) & 0xFFFFFFFF
    )
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x2C1B3C6D)
    mixed ^= mixed >> np.uint32(13)
    return ((mixed >> np.uint32(8)) % np.uint32(COPY_KEYS)).astype(np.int32)
