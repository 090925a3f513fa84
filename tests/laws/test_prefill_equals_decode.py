"""Law 1: prefill(t+1) = prefill(t) then decode(1), for every t, every parity and every slice cut.

The equality is one of bits: a row reads the same keys in the same order in both programs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_support import SLOTS, Machine, assert_same_bits, blocks_of, bucket, machine, piece

from dsinfer_jax.model.plan import decode_plan

LENGTH = 301
LONG = bucket(304)  # one whole sequence
SHORT = bucket(64)  # eight rows of each of eight sequences

WINDOW, BLOCK = 8, 128
EDGES = sorted(
    {
        edge + offset
        for edge in (WINDOW, 2 * WINDOW, BLOCK, 2 * BLOCK, LENGTH)
        for offset in (-2, -1, 0, 1, 2)
        if 0 < edge + offset < LENGTH
    }
    | {1, 2, 3, 4}
)


@pytest.fixture(scope="module", params=["exact", "runtime"])
def tiny(request: pytest.FixtureRequest) -> Machine:
    return machine("tiny", request.param)


@pytest.fixture(scope="module")
def sequences(tiny: Machine) -> list[np.ndarray]:
    return [tiny.tokens(LENGTH, seed) for seed in range(SLOTS)]


@pytest.fixture(scope="module")
def expected(tiny: Machine, sequences: list[np.ndarray]) -> list[np.ndarray]:
    """Logits of all rows of all sequences, each from one prefill: row t is prefill(t+1)."""
    return [tiny.whole(tokens, LONG, slot) for slot, tokens in enumerate(sequences)]


def test_every_length(tiny, sequences, expected):
    """For every t in 1..300: prefill t tokens, decode one."""
    cache = tiny.fresh()
    checked = set()
    for done in range(0, LENGTH - 1, SLOTS):
        # slot s takes s + 1 more rows, then decodes the next: eight lengths a round
        lengths = [min(done + slot + 1, LENGTH - 1) for slot in range(SLOTS)]
        slices = [
            piece(tokens, done, length, slot=slot)
            for slot, (tokens, length) in enumerate(zip(sequences, lengths, strict=True))
        ]
        trial, logits = tiny.prefill(jax.tree.map(jnp.copy, cache), slices, SHORT)
        token_ids = [[tokens[length]] for tokens, length in zip(sequences, lengths, strict=True)]
        _, decoded = tiny.decode(trial, np.array(token_ids), np.array(lengths))
        for slot, length in enumerate(lengths):
            assert_same_bits(logits[slot], expected[slot][done:length], f"slice to {length}")
            assert_same_bits(
                decoded[slot], expected[slot][length : length + 1], f"decode after {length}"
            )
            checked.add(length)
        end = min(done + SLOTS, LENGTH)
        slices = [piece(tokens, done, end, slot=slot) for slot, tokens in enumerate(sequences)]
        cache, _ = tiny.prefill(cache, slices, SHORT)
    assert checked == set(range(1, LENGTH))


@pytest.mark.parametrize("cut", EDGES)
def test_cut_at_an_edge(tiny, sequences, expected, cut):
    """Two slices, cut around window, block and pair edges; the prefix alone is prefill(cut)."""
    tokens = sequences[0]
    cache, (before,) = tiny.prefill(tiny.fresh(), [piece(tokens, 0, cut)], LONG)
    _, (after,) = tiny.prefill(cache, [piece(tokens, cut, LENGTH)], LONG)
    assert_same_bits(np.concatenate([before, after]), expected[0], f"cut at {cut}")


def test_many_cuts(tiny, sequences, expected):
    """Every sequence in slices of its own pattern of lengths, all parities among them."""
    patterns = [(1, 8), (2, 7), (3, 6), (5,), (7,), (8,), (4, 1, 6), (6, 8, 3)]
    done, cache = [0] * SLOTS, tiny.fresh()
    turn = 0
    while any(start < LENGTH for start in done):
        slices, slots = [], []
        for slot, tokens in enumerate(sequences):
            rows = patterns[slot][turn % len(patterns[slot])]
            stop = min(done[slot] + rows, LENGTH)
            if stop > done[slot]:
                slices.append(piece(tokens, done[slot], stop, slot=slot))
                slots.append((slot, done[slot], stop))
                done[slot] = stop
        cache, logits = tiny.prefill(cache, slices, SHORT)
        for rows, (slot, start, stop) in zip(logits, slots, strict=True):
            assert_same_bits(rows, expected[slot][start:stop], f"slice {start}..{stop}")
        turn += 1


def test_earlier_tokens_come_from_the_ring(tiny, sequences, expected):
    """The n-gram memory finds tokens before a slice itself when the plan does not bring them."""
    cache = tiny.fresh()
    for start in range(0, 64, 8):
        slices = [
            piece(tokens, start, start + 8, slot=slot, previous_ids=())
            for slot, tokens in enumerate(sequences)
        ]
        cache, logits = tiny.prefill(cache, slices, SHORT)
        for slot in range(SLOTS):
            assert_same_bits(logits[slot], expected[slot][start : start + 8])


def test_long_decode(tiny, sequences, expected):
    """Slots that start at different lengths and decode for a long time, some idle in between."""
    starts = [1, 2, 7, 9, 120, 127, 128, 255]
    cache = tiny.fresh()
    for slot, start in enumerate(starts):
        cache, _ = tiny.prefill(cache, [piece(sequences[slot], 0, start, slot=slot)], LONG)
    position = np.array(starts)
    for turn in range(40):
        active = (np.arange(SLOTS) + turn) % 5 != 0
        token_ids = np.array([[sequences[slot][position[slot]]] for slot in range(SLOTS)])
        cache, logits = tiny.decode(cache, token_ids, np.where(active, position, -1))
        for slot in np.flatnonzero(active):
            at = position[slot]
            assert_same_bits(logits[slot], expected[slot][at : at + 1], f"decode at {at}")
        position += active


def test_rows_of_a_slot_and_rollback(tiny, sequences, expected):
    """Up to six rows per slot, of which some are rejected and overwritten by the next step."""
    if tiny.numerics.rounds:
        pytest.skip("one policy is enough: the six-row program takes long to compile")
    random = np.random.default_rng(5)
    cache = tiny.fresh()
    starts = np.array([3, 8, 15, 63, 122, 127, 130, 251])
    for slot, start in enumerate(starts):
        cache, _ = tiny.prefill(cache, [piece(sequences[slot], 0, start, slot=slot)], LONG)
    position = starts.copy()
    for _ in range(16):
        counts = random.integers(1, 7, SLOTS)  # rows in use
        accepted = np.minimum(random.integers(1, 7, SLOTS), counts)  # leading rows that are right
        counts = np.minimum(counts, LENGTH - position)
        accepted = np.minimum(accepted, counts)
        token_ids = random.integers(3, tiny.config.vocab_size, (SLOTS, 6))  # wrong drafts
        for slot in range(SLOTS):
            right = sequences[slot][position[slot] : position[slot] + accepted[slot]]
            token_ids[slot, : accepted[slot]] = right
        active = accepted > 0
        start = np.where(active, position, -1)
        cache, logits = tiny.decode(cache, token_ids, start, counts.astype(np.int32))
        for slot in np.flatnonzero(active):
            at, stop = position[slot], position[slot] + accepted[slot]
            assert_same_bits(
                logits[slot, : accepted[slot]], expected[slot][at:stop], f"rows {at}..{stop}"
            )
        position += accepted


def test_slots_share_the_rows_of_a_ragged_step(tiny, sequences, expected):
    """Any number of rows for each slot, one after the other, some slots without."""
    random, rows, most = np.random.default_rng(6), 16, 6
    cache = tiny.fresh()
    position = np.array([3, 8, 15, 63, 122, 127, 130, 251])
    for slot, start in enumerate(position):
        cache, _ = tiny.prefill(cache, [piece(sequences[slot], 0, start, slot=slot)], LONG)
    tables = np.stack([blocks_of(slot) for slot in range(SLOTS)])
    for _ in range(12):
        counts = random.integers(0, most + 1, SLOTS)
        while counts.sum() > rows:
            counts[random.integers(SLOTS)] = 0
        counts = np.minimum(counts, LENGTH - position)
        token_ids = np.array([np.resize(sequences[slot][at:], most)
                              for slot, at in enumerate(position)])  # fmt: skip
        padding = rows - counts.sum()
        slot_of = np.append(np.repeat(np.arange(SLOTS), counts), [SLOTS - 1] * padding)
        offset = np.append(np.concatenate([np.arange(count) for count in counts]), [most] * padding)
        plan = decode_plan(
            token_ids.astype(np.int32), np.where(counts > 0, position, -1).astype(np.int32),
            tables, tiny.config, counts.astype(np.int32),
            (slot_of.astype(np.int32), offset.astype(np.int32)),
        )  # fmt: skip
        cache, logits = tiny.step(tiny.params, cache, plan)
        by_slot = np.split(np.asarray(logits), np.cumsum(counts))
        for slot in np.flatnonzero(counts):
            at, stop = position[slot], position[slot] + counts[slot]
            assert_same_bits(by_slot[slot], expected[slot][at:stop], f"rows {at}..{stop}")
        position += counts
