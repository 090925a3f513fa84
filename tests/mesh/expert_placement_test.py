"""Placements of experts: every expert has places, tables agree with them, moves lead across."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinfer_jax.mesh import expert_placement as placements
from dsinfer_jax.mesh.expert_moves import aligned, moves_between, sender
from dsinfer_jax.mesh.expert_placement import COPY_KEYS, Placement, PlaceSizes


@st.composite
def random_placements(draw: st.DrawFn, number: int = 1) -> list[Placement]:
    """Any placements of the same sizes, each expert somewhere, shares any."""
    experts = draw(st.integers(1, 12))
    ranks = draw(st.integers(1, 6))
    sizes = PlaceSizes.of(experts, draw(st.integers(0, 8)), ranks)
    layers = draw(st.integers(1, 2))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    result = []
    for _ in range(number):
        rows = []
        for _ in range(layers):
            extra = random.integers(0, experts, sizes.redundant)
            rows.append(random.permutation(np.concatenate([np.arange(experts), extra])))
        shares = random.exponential(size=(layers, sizes.places)) * random.integers(
            0, 2, (layers, sizes.places)
        )
        result.append(placements.shared_placement(sizes, np.stack(rows).astype(np.int32), shares))
    return result


@pytest.mark.parametrize(
    ("experts", "requested", "ranks", "redundant"),
    [(256, 4, 64, 64), (256, 0, 6, 2), (256, 0, 8, 0), (256, 1, 64, 64), (256, 64, 64, 64)],
)
def test_redundant_places(experts: int, requested: int, ranks: int, redundant: int) -> None:
    """The values of engine.md 13."""
    sizes = PlaceSizes.of(experts, requested, ranks)
    assert sizes.redundant == redundant
    assert sizes.per_rank * ranks == sizes.places


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks is 0; it must be 1 or more"):
        PlaceSizes.of(8, 0, 0)


def test_first_placement_is_the_experts_in_order_and_again() -> None:
    placement = placements.first_placement(PlaceSizes.of(4, 3, 2), layers=2)
    assert placement.expert_at.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]] * 2
    assert placement.copies.tolist() == [[2, 2, 2, 2]] * 2


@given(random_placements())
@settings(max_examples=60, deadline=None)
def test_tables_agree_with_places(cases: list[Placement]) -> None:
    (placement,) = cases
    placement.check()
    assert placement.copies.sum(axis=1).tolist() == [placement.sizes.places] * placement.layers
    assert np.allclose(placement.shares().sum(axis=2), 1)


def test_shares_are_rounded_to_parts_of_the_table() -> None:
    sizes = PlaceSizes.of(2, 2, 2)
    expert_at = np.array([[0, 1, 0, 0]])
    placement = placements.shared_placement(sizes, expert_at, np.array([[0.5, 1, 0.3, 0.2]]))
    entries = np.bincount(placement.copy_table[0, 0], minlength=4)
    assert entries.tolist() == [COPY_KEYS // 2, 0, COPY_KEYS * 3 // 10, COPY_KEYS // 5]
    even = placements.even_placement(sizes, expert_at)
    assert np.bincount(even.copy_table[0, 0]).tolist() == [COPY_KEYS // 3, 0, 40, 40]


def test_wrong_placements_are_refused() -> None:
    sizes = PlaceSizes.of(3, 0, 3)
    with pytest.raises(ValueError, match="expert 2 has no place"):
        placements.even_placement(sizes, np.array([[0, 1, 1]]))
    good = placements.first_placement(sizes, 1)
    table = good.copy_table.copy()
    table[0, 1, 7] = 2
    with pytest.raises(
        ValueError, match="copy 7 of expert 1 of layer 0 is place 2, which holds expert 2"
    ):
        Placement(sizes, good.expert_at, table).check()


def test_copy_keys_depend_on_the_row_alone_and_are_spread() -> None:
    position, token = np.arange(120_000) % 3000, np.arange(120_000) // 40
    keys = placements.copy_key(position, token, layer=3)
    order = np.random.default_rng(0).permutation(len(keys))
    assert np.array_equal(placements.copy_key(position[order], token[order], 3), keys[order])
    counts = np.bincount(keys, minlength=COPY_KEYS)
    assert counts.min() > 800 and counts.max() < 1200  # 1000 each, six standard deviations
    in_step = placements.copy_key(np.full(6000, 77), np.arange(6000), layer=3)
    assert np.bincount(in_step, minlength=COPY_KEYS).max() < 100  # 50 each
    assert not np.array_equal(placements.copy_key(position, token, 4), keys)


@given(random_placements(number=2))
@settings(max_examples=60, deadline=None)
def test_moves_lead_from_the_old_placement_to_the_new(cases: list[Placement]) -> None:
    old, new = cases
    moves = moves_between(old, new)
    layers = np.arange(old.layers)[:, None]
    assert np.array_equal(old.expert_at[layers, moves.source], new.expert_at)
    stays = old.expert_at == new.expert_at
    assert (moves.source == np.arange(old.sizes.places))[stays].all()
    # fewest transfers: one for each rank and expert that the rank does not hold
    needed = 0
    for before, after in zip(old.expert_at, new.expert_at, strict=True):
        for rank in range(old.sizes.ranks):
            own = slice(rank * old.sizes.per_rank, (rank + 1) * old.sizes.per_rank)
            needed += len(set(after[own].tolist()) - set(before[own].tolist()))
    assert moves.transfers == needed
    assert moves.transfers + moves.local == (~stays).sum()


@given(random_placements(number=2))
@settings(max_examples=60, deadline=None)
def test_alignment_renames_ranks_and_moves_no_more(cases: list[Placement]) -> None:
    old, new = cases
    renamed = aligned(new, old)
    renamed.check()
    assert moves_between(old, aligned(old, old)).transfers == 0

    def by_rank(placement: Placement, layer: int) -> list[tuple[float, ...]]:
        """What each rank holds and computes, without its name."""
        rows = placement.expert_at[layer].reshape(placement.sizes.ranks, -1)
        shares = np.round(placement.shares()[layer].T, 9)
        return sorted((*sorted(a), *b) for a, b in zip(rows.tolist(), shares.tolist(), strict=True))

    for layer in range(new.layers):
        assert by_rank(renamed, layer) == by_rank(new, layer)


def test_alignment_undoes_a_permutation_of_ranks() -> None:
    sizes = PlaceSizes.of(12, 4, 4)
    old = placements.first_placement(sizes, 1)
    turned = placements.even_placement(sizes, np.roll(old.expert_at, 5, axis=1))
    swapped = placements.even_placement(sizes, np.roll(old.expert_at, 8, axis=1))
    assert moves_between(old, swapped).transfers == 16
    assert moves_between(old, aligned(swapped, old)).transfers == 0
    assert moves_between(old, aligned(turned, old)).transfers == 3


def test_senders_share_the_work() -> None:
    """The pairs of engine.md 13."""
    assert [sender(j, 5, 2) for j in range(5)] == [0, 0, 1, 1, 0]
    assert [sender(j, 2, 3) for j in range(2)] == [0, 1]
