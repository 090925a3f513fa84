"""Policies of expert placement: the reference's, ours, and when they run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinfer_jax.mesh.expert_balance import DECODE, PREFILL, BalanceSettings, ExpertBalancer
from dsinfer_jax.mesh.expert_loads import (
    LoadStatistics,
    moe_lb,
    rank_loads,
)
from dsinfer_jax.mesh.expert_placement import PlaceSizes, first_placement
from dsinfer_jax.mesh.expert_policy import balanced_placement, reference_placement, tuned


def test_reference_policy_on_the_published_example() -> None:
    """The example of engine.md 13."""
    loads = np.array([[[8, 2, 4, 2]], [[10, 2, 2, 2]]])
    placement = reference_placement(loads, PlaceSizes.of(4, 2, 3))
    assert placement.copies.tolist() == [[3, 1, 1, 1]]
    assert placement.expert_at.tolist() == [[0, 0, 2, 3, 0, 1]]
    places = [set(row.tolist()) for row in placement.copy_table[0]]
    assert places == [{0, 4, 1}, {5}, {2}, {3}]
    assert moe_lb(rank_loads(loads, placement)) == pytest.approx(1.1875)


def literal_copies(tokens: np.ndarray, redundant: int) -> list[int]:
    """Part A of engine.md 7.5, as it is written there."""
    steps, experts = tokens.shape
    copies = [1] * experts
    for _ in range(redundant):
        totals = []
        scores = (tokens + 1e-4 * np.arange(experts)) / copies
        for j in range(experts):
            total = 0.0
            for t in range(steps):
                busiest = int(scores[t].argmax())
                if busiest != j:
                    total += scores[t, busiest]
                    continue
                others = [scores[t, i] for i in range(experts) if i != j]
                total += max([*others, tokens[t, j] / (copies[j] + 1)])
            totals.append(total)
        copies[int(np.argmin(np.round(totals, 9)))] += 1
    return copies


def literal_places(tokens: np.ndarray, copies: list[int], slots: list[int], ranks: int) -> list:
    """Part B of engine.md 7.5, as it is written there: experts on each rank."""
    per_rank = len(slots) // ranks
    sums = [float((tokens[:, e] / copies[e]).sum()) for e in slots]
    order = sorted(range(len(slots)), key=lambda slot: (-round(sums[slot], 9), slot))
    loads = np.zeros((ranks, len(tokens)))
    peak = np.zeros(len(tokens))
    held: list[list[int]] = [[] for _ in range(ranks)]
    for slot in order:
        load = tokens[:, slots[slot]] / copies[slots[slot]]
        open_ranks = [rank for rank in range(ranks) if len(held[rank]) < per_rank]
        raised = {rank: np.maximum(peak, loads[rank] + load).sum() for rank in open_ranks}
        rank = min(open_ranks, key=lambda rank: (round(raised[rank], 9), rank))
        held[rank].append(slots[slot])
        loads[rank] += load
        peak = np.maximum(peak, loads[rank])
    return [expert for row in held for expert in row]


@given(st.integers(0, 2**32), st.integers(2, 8), st.integers(2, 4), st.integers(0, 6))
@settings(max_examples=40, deadline=None)
def test_reference_policy_is_the_written_one(
    seed: int, experts: int, ranks: int, requested: int
) -> None:
    sizes = PlaceSizes.of(experts, requested, ranks)
    # irrational loads: no ties that rounding could decide one way or the other
    tokens = np.random.default_rng(seed).gamma(0.7, 50.0, (5, experts))
    placement = reference_placement(tokens[:, None], sizes)
    copies = literal_copies(tokens, sizes.redundant)
    assert placement.copies[0].tolist() == copies
    slots = list(range(experts))
    remaining = [count - 1 for count in copies]
    slots += [e for e in range(experts) for _ in range(remaining[e])]
    if sizes.per_rank > 1:
        expected = literal_places(tokens, copies, slots, ranks)
        assert placement.expert_at[0].tolist() == expected


def skewed(steps: int, layers: int, experts: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    popularity = np.exp(random.normal(0, 1.2, (layers, experts)))
    return random.poisson(200 * popularity, (steps, layers, experts))


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 12))
@settings(max_examples=30, deadline=None)
def test_ours_is_never_worse_on_its_window(seed: int, ranks: int, requested: int) -> None:
    sizes = PlaceSizes.of(12, requested, ranks)
    loads = skewed(6, 2, 12, seed)
    reference, ours = reference_placement(loads, sizes), balanced_placement(loads, sizes)
    ours.check()
    for layer in range(2):
        window = loads[:, layer : layer + 1]
        before, after = (
            moe_lb(rank_loads(window, _layer(placement, layer))) for placement in (reference, ours)
        )
        assert after <= before + 1e-12
    again = tuned(first_placement(sizes, 2), loads)
    again.check()
    assert np.array_equal(again.expert_at, first_placement(sizes, 2).expert_at)
    assert moe_lb(rank_loads(loads, again)) <= moe_lb(rank_loads(loads, first_placement(sizes, 2)))


def _layer(placement, layer):
    return replace(
        placement,
        expert_at=placement.expert_at[layer : layer + 1],
        copy_table=placement.copy_table[layer : layer + 1],
    )


def test_unequal_shares_balance_what_whole_copies_cannot() -> None:
    """Halves of the hot expert leave 27.5 to 32.5; other shares of it make up for the rest."""
    loads = np.array([[[45, 5, 10]]])
    sizes = PlaceSizes.of(3, 1, 2)
    reference, ours = reference_placement(loads, sizes), balanced_placement(loads, sizes)
    assert moe_lb(rank_loads(loads, reference)) == pytest.approx(32.5 / 30)
    assert moe_lb(rank_loads(loads, ours)) < 1.01


def linked_ranks(expert_at: np.ndarray, sizes: PlaceSizes) -> set[int]:
    """Ranks that rank 0 can pass load to, through experts with copies."""
    held = expert_at.reshape(sizes.ranks, -1)
    reached, waiting = {0}, [0]
    while waiting:
        experts = held[waiting.pop()]
        for rank in range(sizes.ranks):
            if rank not in reached and np.isin(held[rank], experts).any():
                reached.add(rank)
                waiting.append(rank)
    return reached


def test_linked_placements_follow_drift_without_moves() -> None:
    """Shares alone repair a drift that leaves whole copies uneven."""
    sizes = PlaceSizes.of(48, 16, 16)
    random = np.random.default_rng(3)
    popularity = np.exp(random.normal(0, 0.8, 48))
    before = random.poisson(400 * popularity, (40, 1, 48))
    drifted = popularity * np.exp(random.normal(0, 0.15, 48))
    after = random.poisson(400 * drifted, (40, 1, 48))
    reference = reference_placement(before, sizes)
    linked = balanced_placement(before, sizes, slack=1.0)
    linked.check()
    assert linked_ranks(linked.expert_at[0], sizes) == set(range(16))
    follows = (
        moe_lb(rank_loads(after, tuned(linked, before))),
        moe_lb(rank_loads(after, tuned(linked, after))),
    )
    assert follows[1] < follows[0] - 0.03
    assert follows[1] < moe_lb(rank_loads(after, tuned(reference, after)))
    assert follows[1] < 1.05


def test_names_of_experts_do_not_matter() -> None:
    """Permuting experts permutes the placement, up to names of ranks."""
    loads = skewed(20, 1, 16, seed=5)
    sizes = PlaceSizes.of(16, 8, 4)
    order = np.random.default_rng(1).permutation(16)
    for policy in (reference_placement, balanced_placement):
        plain = moe_lb(rank_loads(loads, policy(loads, sizes)))
        permuted = moe_lb(rank_loads(loads[:, :, order], policy(loads[:, :, order], sizes)))
        assert permuted == pytest.approx(plain, rel=1e-9)


def test_metric() -> None:
    assert moe_lb(np.zeros((0, 1, 4))) == 1.0
    assert moe_lb(np.zeros((3, 1, 4))) == 1.0
    assert moe_lb(np.array([[[4, 0]], [[2, 2]]])) == (4 + 2) / (2 + 2)


def test_statistics_keep_the_window() -> None:
    statistics = LoadStatistics(layers=1, experts=2, window=3)
    for step in range(5):
        assert len(statistics.loads()) == min(step, 3)
        statistics.record(np.array([[step, 2 * step]]))
    assert statistics.loads()[:, 0, 0].tolist() == [2, 3, 4]


def test_schedule_of_rearrangements() -> None:
    """After a quarter of an interval, then every interval; shares every window in between."""
    balancer = ExpertBalancer(1, 8, 4, BalanceSettings(1, window=5, interval=20))
    moved, shared = [], []
    for step, counts in enumerate(skewed(50, 1, 8, seed=3), start=1):
        change = balancer.record(counts)
        if change is not None:
            assert change.placement is balancer.placement
            (shared if change.moves is None else moved).append(step)
    assert moved == [5, 25, 45]
    assert shared == [10, 15, 20, 30, 35, 40, 50]


def test_rearranging_every_step_stays_legal_and_moves_little() -> None:
    balancer = ExpertBalancer(2, 12, 4, BalanceSettings(1, window=1, interval=1))
    for counts in skewed(50, 2, 12, seed=8):
        before = balancer.placement
        change = balancer.record(counts)
        assert change is not None and change.moves is not None
        change.placement.check()
        layers = np.arange(2)[:, None]
        assert np.array_equal(
            before.expert_at[layers, change.moves.source], change.placement.expert_at
        )


def test_one_rank_is_left_alone() -> None:
    balancer = ExpertBalancer(1, 8, 1, BalanceSettings(0, window=1, interval=1))
    assert balancer.record(np.ones((1, 8))) is None


def test_published_settings() -> None:
    assert (PREFILL.redundant_per_rank, PREFILL.window, PREFILL.interval) == (4, 100, 1000)
    assert (DECODE.redundant_per_rank, DECODE.window, DECODE.interval) == (1, 1000, 10000)
    with pytest.raises(ValueError, match="window is 5 and interval 4"):
        BalanceSettings(1, 5, 4)
