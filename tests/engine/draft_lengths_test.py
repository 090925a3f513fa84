"""The arithmetic of variable verification lengths, and why it keeps the law (speculative.md 9)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsinfer_jax.engine.decode_rows import RaggedRows, UniformRows, admitted
from dsinfer_jax.engine.draft_lengths import TimeCurve, best_budget, split, survival

CONFIDENCES = np.array([[0.9, 0.5, 0.9], [0.6, 0.9, 0.1]], np.float32)
FIRST, SECOND = {2: 10.0, 4: 11.0, 8: 16.0}, {2: 10.0, 4: 11.0, 8: 14.0}
PRINTED = 0.5e-4 + 1e-8  # four digits, and one value that lies between two of them
CHECKS = [
    (TimeCurve(FIRST), [0.2000, 0.2636, 0.3182, 0.2525, 0.2806, 0.3059, 0.3093], 4, [2, 2]),
    (TimeCurve(SECOND), [0.2000, 0.2636, 0.3182, 0.2886, 0.3207, 0.3496, 0.3535], 8, [4, 4]),
    (
        TimeCurve(SECOND, slope=0.5, sampler=2.0),
        [0.1538, 0.1933, 0.2333, 0.2020, 0.2245, 0.2448, 0.2475],
        8,
        [4, 4],
    ),
]


def test_survival_is_the_product_so_far() -> None:
    wanted = [[0.9, 0.45, 0.405], [0.6, 0.54, 0.054]]
    np.testing.assert_allclose(survival(CONFIDENCES), wanted, rtol=1e-6)


@pytest.mark.parametrize(("curve", "throughput", "rows", "each"), CHECKS, ids=["1", "2", "4"])
def test_the_check_values(
    curve: TimeCurve, throughput: list[float], rows: int, each: list[int]
) -> None:
    """9.6, every throughput of it: those of the first `k` drafts are those of a shorter curve."""
    rates = survival(CONFIDENCES)
    best = best_budget(rates, 2, curve)
    assert 2 + best.drafts == rows
    assert (1 + split(rates, best.drafts)).tolist() == each
    assert best.throughput == pytest.approx(max(throughput), abs=PRINTED)
    order = np.sort(rates.reshape(-1))[::-1]
    tokens = 2 + np.concatenate([[0.0], np.cumsum(order, dtype=np.float64)])
    for drafts, wanted in enumerate(throughput):
        got = tokens[drafts] / curve.step_seconds(2 + drafts)
        assert got == pytest.approx(wanted, abs=PRINTED)


def test_the_split_takes_the_drafts_at_hand() -> None:
    """The third row of 9.6: the budget is of the old rates, the rows go to the current ones."""
    budget = best_budget(survival(CONFIDENCES), 2, TimeCurve(FIRST)).drafts
    current = np.array([[0.3, 0.09, 0.027], [0.95, 0.855, 0.684]], np.float32)
    assert (1 + split(current, budget)).tolist() == [1, 3]


def test_the_smallest_of_equal_budgets_and_no_rows_beyond_the_programs() -> None:
    none = np.zeros((2, 3), np.float32)
    assert best_budget(none, 2, TimeCurve({8: 1.0})).drafts == 0
    sure = np.ones((4, 5), np.float32)
    assert best_budget(sure, 4, TimeCurve({8: 1.0})).drafts == 4
    with pytest.raises(ValueError, match="a step has 9 rows; the largest program has 8"):
        TimeCurve({8: 1.0}).step_seconds(9)


def test_what_is_believed_counts_and_what_is_estimated_orders() -> None:
    """Drafts that rank first and are worth nothing bring nothing."""
    rates = np.array([[1.0], [0.5]])
    believed = np.array([[0.0], [0.5]])
    curve = TimeCurve({2: 10.0, 3: 10.1, 4: 13.0})
    assert best_budget(rates, 2, curve).drafts == 1
    assert best_budget(rates, 2, curve, believed).drafts == 0


def random_confidences(dice: np.random.Generator, slots: int, places: int) -> np.ndarray:
    """Few values, zeros and ones among them, so that there are ties everywhere."""
    return dice.integers(0, 5, (slots, places)).astype(np.float32) / 4


admitted_compiled = jax.jit(admitted)


def test_the_device_splits_as_the_host_does() -> None:
    dice = np.random.default_rng(0)
    for trial in range(300):
        made = random_confidences if trial % 2 else lambda d, s, p: d.random((s, p), np.float32)
        confidences = made(dice, 6, 4)
        available = dice.integers(0, 5, 6)
        budget = int(dice.integers(0, 26))
        got = admitted_compiled(confidences, available, budget)
        rates = np.where(np.arange(4) < available[:, None], survival(confidences), -1.0)
        wanted = split(rates, min(budget, int(available.sum())))
        np.testing.assert_array_equal(got, wanted)
        assert got.sum() == min(budget, available.sum())
        assert (got <= available).all()


def test_later_places_never_move_an_earlier_one() -> None:
    """M11: whatever a slot's confidences from a place on are, its earlier drafts stay in or out."""
    dice = np.random.default_rng(1)
    for _ in range(400):
        confidences = random_confidences(dice, 5, 5)
        available, budget = np.full(5, 5), int(dice.integers(0, 26))
        slot, place = int(dice.integers(5)), int(dice.integers(1, 5))
        changed = confidences.copy()
        changed[slot, place:] = random_confidences(dice, 1, 5 - place)
        before = int(admitted_compiled(confidences, available, budget)[slot])
        after = int(admitted_compiled(changed, available, budget)[slot])
        assert min(before, place) == min(after, place)


def test_rows_are_where_their_slot_says() -> None:
    counts, width = np.array([2, 0, 3, 1]), 3
    rows = RaggedRows.of(jnp.asarray(counts), 8, width)
    assert rows.slot[:6].tolist() == [0, 0, 2, 2, 2, 3]
    assert rows.place.tolist() == [0, 1, 0, 1, 2, 0, width, width]
    by_place = jnp.arange(12).reshape(4, 3)
    assert rows.spread(by_place)[:6].tolist() == [0, 1, 6, 7, 8, 9]
    collected = rows.collect(rows.spread(by_place), width)
    for slot, count in enumerate(counts.tolist()):
        assert collected[slot, :count].tolist() == by_place[slot, :count].tolist()


def test_a_uniform_program_has_the_same_rows_for_all() -> None:
    rows, by_place = UniformRows(3, 2), jnp.arange(9).reshape(3, 3)
    assert rows.spread(by_place).tolist() == [0, 1, 3, 4, 6, 7]
    assert rows.spread(by_place[:, :1]).tolist() == [0, 0, 3, 0, 6, 0]
    assert rows.collect(rows.spread(by_place), 2).tolist() == by_place[:, :2].tolist()
    assert rows.slot.tolist() == [0, 0, 1, 1, 2, 2]
    assert rows.first.tolist() == [0, 2, 4]


TARGET, DRAFT = np.array([0.7, 0.3]), np.array([0.5, 0.5])
SPEED = TimeCurve({1: 1.0, 2: 1 / 0.5, 3: 1 / 0.45})
Rule = Callable[[np.ndarray, np.ndarray], int]


def share_of_a(rule: Rule) -> float:
    """The probability that token A is emitted next, in the example of 9.5.

    Args:
        rule: (confidences of the drafts before, of those at hand) -> how many are verified.
    """
    overlap = np.minimum(TARGET, DRAFT).sum()
    left = np.maximum(TARGET - DRAFT, 0) / (1 - overlap)
    made = {0: np.array([[0.8, 1.0]]), 1: np.array([[0.8, 0.0]])}  # by the draft; exact
    total = 0.0
    for before in (0, 1):
        for first in (0, 1):
            chance = DRAFT[before] * DRAFT[first]
            if rule(made[before], made[first]) == 0:  # a fresh draw
                total += chance * TARGET[0]
                continue
            stays = min(1.0, TARGET[first] / DRAFT[first])
            total += chance * (stays * (first == 0) + (1 - stays) * left[0])
    return float(total)


def search_at_hand(before: np.ndarray, at_hand: np.ndarray) -> int:
    """The wrong rule: the best length for the drafts that are to be judged."""
    return best_budget(survival(at_hand), 1, SPEED).drafts


def two_queues(before: np.ndarray, at_hand: np.ndarray) -> int:
    """Ours: the budget of the drafts before, split over those at hand."""
    budget = best_budget(survival(before), 1, SPEED).drafts
    return int(split(survival(at_hand), budget)[0])


def test_a_length_chosen_from_the_drafts_at_hand_bends_the_law() -> None:
    """The counterexample of 9.5."""
    assert search_at_hand(np.zeros((1, 2)), np.array([[0.8, 1.0]])) == 2
    assert search_at_hand(np.zeros((1, 2)), np.array([[0.8, 0.0]])) == 0
    assert share_of_a(search_at_hand) == pytest.approx(0.85)
    assert share_of_a(two_queues) == pytest.approx(0.7)
    for length in (0, 1, 2):
        assert share_of_a(lambda before, at_hand, length=length: length) == pytest.approx(0.7)
