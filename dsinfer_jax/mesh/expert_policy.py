"""The policies that place experts by their loads (engine.md 7.5).

`reference_placement` is the policy of the published engine. `balanced_placement` starts from it and
gives the copies of an expert unequal shares, so that the rows of a hot expert go where there is
room; `tuned` does only that, for weights that stay where they are. Both return the best of what
they tried by the metric on the window, the reference's own placement included: on its window ours
is never worse. All are deterministic: every process computes the same from the same counts.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dsinfer_jax.mesh.expert_loads import Counts, moe_lb, rank_loads
from dsinfer_jax.mesh.expert_placement import (
    Floats,
    Integers,
    Placement,
    PlaceSizes,
    even_placement,
    normalised,
    shared_placement,
)

_TIE_BREAK = 1e-4  # per expert id: makes the busiest expert of a step unique
_SAMPLES = 128  # the window is averaged to so many moments when shares are tuned
_ROUNDS = 80  # of tuning
_SHARPNESS = 100.0  # of the soft maximum over ranks: 1 % of load is one factor of e
_STEP = 0.3  # first change of log shares, falling as 1 / sqrt(round)


def reference_placement(loads: Counts, sizes: PlaceSizes) -> Placement:
    """The placement of the published policy for the window [steps, layers, experts]."""
    rows = []
    for layer in range(loads.shape[1]):
        tokens = loads[:, layer].astype(np.float64)
        rows.append(_reference_places(tokens, *_reference_copies(tokens, sizes), sizes))
    return even_placement(sizes, np.stack(rows))


def _reference_copies(tokens: Floats, sizes: PlaceSizes) -> tuple[Integers, Integers]:
    """Copies of each expert [experts], and the expert of each slot in the order of granting: each
    round goes to the expert whose next copy lowers the windowed sum of the busiest copy most."""
    steps, experts = tokens.shape
    copies = np.ones(experts, np.int32)
    slots = list(range(experts))
    perturbed = tokens + _TIE_BREAK * np.arange(experts)
    scores = perturbed.copy()
    every = np.arange(steps)
    for _ in range(sizes.redundant):
        busiest = scores.argmax(axis=1)
        peak = scores[every, busiest]
        scores[every, busiest] = -np.inf
        second = scores.max(axis=1) if experts > 1 else np.full(steps, -np.inf)
        scores[every, busiest] = peak
        relieved = np.maximum(second, tokens[every, busiest] / (copies[busiest] + 1))
        change = np.bincount(busiest, weights=relieved - peak, minlength=experts)
        chosen = int(change.argmin())
        copies[chosen] += 1
        slots.append(chosen)
        scores[:, chosen] = perturbed[:, chosen] / copies[chosen]
    return copies, np.array(slots, np.int32)


def _reference_places(
    tokens: Floats, copies: Integers, slots: Integers, sizes: PlaceSizes
) -> Integers:
    """[places] experts: copies by falling load, each to the rank that raises the peak least."""
    if sizes.per_rank == 1:
        return slots
    return _greedy_places(tokens / copies, slots[_falling(tokens, copies, slots)], sizes, None)


def _linked_places(
    tokens: Floats, copies: Integers, slots: Integers, sizes: PlaceSizes
) -> Integers:
    """As `_reference_places`, but so that shares can pass load from any rank to any other: experts
    with copies come first, and each copy goes to a rank that its expert does not reach yet."""
    experts = slots[_falling(tokens, copies, slots)]
    shared = copies[experts] > 1
    experts = np.concatenate([experts[shared], experts[~shared]])
    return _greedy_places(tokens / copies, experts, sizes, _Links(sizes, copies))


def _falling(tokens: Floats, copies: Integers, slots: Integers) -> NDArray[np.intp]:
    """Order of slots by falling load."""
    return np.argsort(-(tokens / copies)[:, slots].sum(axis=0), kind="stable")


class _Links:
    """Which ranks can pass load to each other, through copies of the same experts."""

    def __init__(self, sizes: PlaceSizes, copies: Integers) -> None:
        self._copies = copies
        self._part = np.arange(sizes.ranks)  # ranks with one number can pass load to each other
        self._holder: dict[int, int] = {}  # a rank of each expert that has one
        self._shared_on = np.zeros(sizes.ranks, np.int32)

    def wanted(self, expert: int, ranks: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of `ranks` where a copy links most: out of the expert's reach, fewest copies."""
        if self._copies[expert] == 1:
            return ranks
        if expert in self._holder:
            apart = ranks[self._part[ranks] != self._part[self._holder[expert]]]
            ranks = apart if apart.size else ranks
        shared_on = self._shared_on[ranks]
        return ranks[shared_on == shared_on.min()]

    def add(self, expert: int, rank: int) -> None:
        """Note that a copy of an expert lies on a rank."""
        if self._copies[expert] > 1:
            self._shared_on[rank] += 1
            joined = self._part[self._holder.setdefault(expert, rank)]
            self._part[self._part == self._part[rank]] = joined


def _greedy_places(
    per_copy: Floats, experts: Integers, sizes: PlaceSizes, links: _Links | None
) -> Integers:
    """[places]: each of `experts` in turn to the rank that raises the peak of all steps least.

    Args:
        per_copy: [steps, experts] load of one copy.
        links: restrict ranks to those that it wants.
    """
    steps = per_copy.shape[0]
    load_of = per_copy.T.copy()
    loads, peak = np.zeros((sizes.ranks, steps)), np.zeros(steps)
    occupied = np.zeros(sizes.ranks, np.int32)
    expert_at = np.empty(sizes.places, np.int32)
    for expert in experts.tolist():
        ranks = np.flatnonzero(occupied < sizes.per_rank)
        if links is not None:
            ranks = links.wanted(expert, ranks)
        raised = np.maximum(peak, loads[ranks] + load_of[expert])
        rank = int(ranks[raised.sum(axis=1).argmin()])
        expert_at[rank * sizes.per_rank + occupied[rank]] = expert
        occupied[rank] += 1
        loads[rank] += load_of[expert]
        peak = np.maximum(peak, loads[rank])
        if links is not None:
            links.add(expert, rank)
    return expert_at


def balanced_placement(loads: Counts, sizes: PlaceSizes, slack: float = 0.0) -> Placement:
    """The best placement found for the window [steps, layers, experts].

    Args:
        slack: by how much the metric of a linked placement, whose shares can follow drift later,
            may exceed that of the best; 0: never worse than `reference_placement` on the window.
    """
    layers = []
    for layer in range(loads.shape[1]):
        window = loads[:, layer : layer + 1]
        candidates = list(_candidates(window, sizes))
        metrics = [_metric(window, candidate) for candidate in candidates]
        best = int(np.argmin(metrics))
        linked = len(candidates) - 1
        layers.append(candidates[linked if metrics[linked] <= metrics[best] + slack else best])
    return _stacked(layers)


def tuned(placement: Placement, loads: Counts) -> Placement:
    """The same weights in the same places, with new shares of the copies for the window; as they
    were in layers where no better shares are found."""
    layers = []
    for layer in range(placement.layers):
        window = loads[:, layer : layer + 1]
        places = placement.expert_at[layer : layer + 1]
        candidates = [
            Placement(placement.sizes, places, placement.copy_table[layer : layer + 1]),
            even_placement(placement.sizes, places),
            _with_tuned_shares(window, places, placement.sizes),
        ]
        layers.append(min(candidates, key=lambda candidate: _metric(window, candidate)))
    return _stacked(layers)


def _candidates(window: Counts, sizes: PlaceSizes) -> Iterator[Placement]:
    """Placements of one layer: the reference first, so that it wins ties, the linked one last."""
    tokens = window[:, 0].astype(np.float64)
    by_peak, by_mean = _reference_copies(tokens, sizes), _mean_copies(tokens, sizes)
    for (copies, slots), place in (
        (by_peak, _reference_places),
        (by_mean, _reference_places),
        (by_peak, _linked_places),
    ):
        places = place(tokens, copies, slots, sizes)[None]
        if place is _reference_places:
            yield even_placement(sizes, places)
        yield _with_tuned_shares(window, places, sizes)


def _metric(window: Counts, placement: Placement) -> float:
    return moe_lb(rank_loads(window, placement))


def _stacked(layers: list[Placement]) -> Placement:
    return Placement(
        layers[0].sizes,
        np.concatenate([layer.expert_at for layer in layers]),
        np.concatenate([layer.copy_table for layer in layers]),
    )


def _mean_copies(tokens: Floats, sizes: PlaceSizes) -> tuple[Integers, Integers]:
    """As `_reference_copies`; each round goes to the busiest copy of the window's mean."""
    mean = tokens.mean(axis=0)
    copies = np.ones(sizes.experts, np.int32)
    slots = list(range(sizes.experts))
    for _ in range(sizes.redundant):
        chosen = int((mean / copies).argmax())
        copies[chosen] += 1
        slots.append(chosen)
    return copies, np.array(slots, np.int32)


def _with_tuned_shares(window: Counts, places: Integers, sizes: PlaceSizes) -> Placement:
    """One layer's placement with the shares that `_tuned_shares` finds."""
    tokens = window[:, 0].astype(np.float64)
    shares = _tuned_shares(_moments(tokens), places[0], sizes)
    return shared_placement(sizes, places, shares[None])


def _moments(tokens: Floats) -> Floats:
    """At most _SAMPLES means over neighbouring steps, which keep drift and drop noise."""
    parts = np.array_split(tokens, min(len(tokens), _SAMPLES))
    return np.stack([part.mean(axis=0) for part in parts])


def _tuned_shares(tokens: Floats, expert_at: Integers, sizes: PlaceSizes) -> Floats:
    """Shares [places] that lower the mean over moments of the busiest rank's load.

    The load of the busiest rank is convex in the shares. It is smoothed over ranks and lowered by
    multiplicative steps, which keep shares positive; the best round by the true maximum is kept.
    """
    mean = tokens.mean(axis=1, keepdims=True)
    relative = tokens[:, expert_at] * sizes.ranks / np.maximum(mean * sizes.experts, 1e-9)
    busy = np.maximum(relative.sum(axis=0), 1e-9)
    shares = normalised(np.ones(sizes.places), expert_at)
    best, least = shares, np.inf
    for number in range(1, _ROUNDS + 1):
        loads = (relative * shares).reshape(-1, sizes.ranks, sizes.per_rank).sum(axis=2)
        peak = loads.max(axis=1, keepdims=True)
        if peak.sum() < least:
            best, least = shares, float(peak.sum())
        weight = np.exp(_SHARPNESS * (loads - peak))
        weight *= sizes.ranks / weight.sum(axis=1, keepdims=True)
        slope = (relative * np.repeat(weight, sizes.per_rank, axis=1)).sum(axis=0) / busy
        slope -= np.bincount(expert_at, weights=slope * shares)[expert_at]
        step = _STEP / number**0.5 * np.clip(slope, -3, 3)
        shares = normalised(shares * np.exp(-step), expert_at)
    return best
