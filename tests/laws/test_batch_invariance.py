"""Law 2: a row's bits do not depend on its neighbours, its place, the bucket or the chunking.

Chunking is law 1 (test_prefill_equals_decode.py), whose programs have 8, 48, 64 and 304 rows. Here
the same rows run in buckets of 8 to 512 rows, in any company. Why it holds:
docs/batch_invariance.md.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_support import (
    SLOTS,
    TILE_ROWS,
    Machine,
    assert_same_bits,
    bucket,
    machine,
    piece,
)

from dsinfer_jax.model.cache import Cache

LENGTH = 312
STARTS = (0, 5, 121, 124, 303)  # slices inside, across and right before a block's edge
slow = pytest.mark.slow
BUCKETS = [8, 512, *(pytest.param(rows, marks=slow) for rows in (16, 24, 32, 128, 256, 304))]
MODELS = [
    ("few_layers", "exact"),
    ("few_layers_formats", "runtime"),
    *(
        pytest.param(model, marks=slow)
        for model in (
            ("few_layers", "runtime"),
            ("few_layers_formats", "exact"),
            ("tiny", "exact"),
            ("tiny", "runtime"),
            ("tiny_formats", "exact"),
            ("tiny_formats", "runtime"),
        )
    ),
]


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def model(request: pytest.FixtureRequest) -> Machine:
    return machine(*request.param)


@pytest.fixture(scope="module")
def sequences(model: Machine) -> list[np.ndarray]:
    return [model.tokens(LENGTH, seed) for seed in range(SLOTS)]


@pytest.fixture(scope="module")
def prefixes(model: Machine, sequences: list[np.ndarray]) -> dict[int, Cache]:
    """For each start: a cache in which every sequence has run up to there."""
    found, cache = {}, model.fresh()
    for start, stop in zip((0, *STARTS[:-1]), STARTS, strict=True):
        for chunk in range(start, stop, 8):
            slices = [
                piece(tokens, chunk, min(chunk + 8, stop), slot=slot)
                for slot, tokens in enumerate(sequences)
            ]
            cache, _ = model.prefill(cache, slices, bucket(64))
        found[stop] = jax.tree.map(jnp.copy, cache)
    return found


def run(model, sequences, prefixes, start, slots, rows):
    """Logits of the eight rows from `start` of each slot's sequence, in this order of slots."""
    cache = jax.tree.map(jnp.copy, prefixes[start])
    slices = [piece(sequences[slot], start, start + 8, slot=slot) for slot in slots]
    _, logits = model.prefill(cache, slices, bucket(rows))
    return dict(zip(slots, logits, strict=True))


@pytest.fixture(scope="module")
def alone(model, sequences, prefixes) -> dict[tuple[int, int], np.ndarray]:
    """(start, slot) -> logits of its rows with nobody beside them."""
    return {
        (start, slot): run(model, sequences, prefixes, start, [slot], 64)[slot]
        for start in STARTS
        for slot in range(SLOTS)
    }


@pytest.mark.parametrize("rows", [64, *BUCKETS])
def test_bucket_place_and_neighbours(model, sequences, prefixes, alone, rows):
    tiles = min(rows // TILE_ROWS, SLOTS)
    for start in STARTS:
        for slots in ([3], list(range(tiles)), [7, 0, 5, 2, 6, 1, 4, 3][-tiles:]):
            found = run(model, sequences, prefixes, start, slots, rows)
            for slot, logits in found.items():
                what = f"bucket {rows}, start {start}, slot {slot} of {slots}"
                assert_same_bits(logits, alone[start, slot], what)


def test_different_lengths_in_one_step(model, sequences, prefixes):
    """Slices of 1 to 24 rows side by side, at different positions, equal the same slices alone."""
    slices = [
        piece(sequences[slot], 5, 5 + rows, slot=slot) for slot, rows in enumerate((23, 1, 9, 8))
    ]
    _, together = model.prefill(jax.tree.map(jnp.copy, prefixes[5]), slices, bucket(64))
    for part, logits in zip(slices, together, strict=True):
        _, (single,) = model.prefill(jax.tree.map(jnp.copy, prefixes[5]), [part], bucket(64))
        assert_same_bits(logits, single, f"slice of {part.rows}")


def test_decode_in_any_company(model, sequences, prefixes, alone):
    """A decoded row equals the prefill row, with idle neighbours and with busy ones."""
    start = STARTS[-1]
    token_ids = np.array([[tokens[start]] for tokens in sequences])
    for active in (np.arange(SLOTS) == 3, np.arange(SLOTS) % 2 == 1, np.full(SLOTS, True)):
        cache = jax.tree.map(jnp.copy, prefixes[start])
        _, logits = model.decode(cache, token_ids, np.where(active, start, -1))
        for slot in np.flatnonzero(active):
            assert_same_bits(logits[slot], alone[start, slot][:1], f"slot {slot}")


def test_two_rows_per_slot(model, sequences, prefixes, alone):
    start = STARTS[2]  # odd: the second row completes no pair
    token_ids = np.stack([tokens[start : start + 2] for tokens in sequences])
    cache = jax.tree.map(jnp.copy, prefixes[start])
    _, logits = model.decode(cache, token_ids, np.full(SLOTS, start))
    for slot in range(SLOTS):
        assert_same_bits(logits[slot], alone[start, slot][:2], f"slot {slot}")


def test_a_poisoned_neighbour(model, sequences, prefixes, alone):
    """A sequence whose state is NaN fails by itself (law 9)."""
    start = STARTS[-1]
    cache = jax.tree.map(jnp.copy, prefixes[start])
    bad = 2
    codes = cache.window.codes.at[:, bad].set(jnp.nan)
    cache = jax.tree_util.tree_map(
        lambda leaf: codes if leaf is cache.window.codes else leaf, cache
    )
    token_ids = np.array([[tokens[start]] for tokens in sequences])
    _, logits = model.decode(cache, token_ids, np.full(SLOTS, start))
    assert np.isnan(logits[bad]).all()
    for slot in set(range(SLOTS)) - {bad}:
        assert_same_bits(logits[slot], alone[start, slot][:1], f"slot {slot}")
