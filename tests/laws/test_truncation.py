"""Truncated prefill and bounded replay (model.md 7): what is dropped, kept and shared."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_support import SLOTS, Machine, assert_same_bits, blocks_of, bucket, machine, piece

from dsinfer_jax import config
from dsinfer_jax.model.plan import Truncation

KEEP, WINDOW, LENGTH, DECODED = 20, 8, 100, 12
BOUND = LENGTH - KEEP
MASK, COMPACT = Truncation("mask", KEEP), Truncation("compact", KEEP)
PLAIN, COMPACTED = bucket(64), bucket(64, consumer_rows=64)
# slices that end before, at, inside and after the bound, of even and odd lengths
CUTS = [(50, 90), (40, BOUND), (33, 81), (64, 99), (37, 79, 85)]


POLICIES = ["exact", pytest.param("runtime", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=POLICIES)
def few(request: pytest.FixtureRequest) -> Machine:
    return machine("few_layers", request.param)


def run(model, tokens, cuts, truncation, rows_bucket):
    """Logits of the prompt's rows from the bound on, and of the rows decoded after it."""
    bounds = [0, *cuts, LENGTH]
    cache, kept = model.fresh(), []
    for start, stop in pairwise(bounds):
        part = piece(
            tokens[:LENGTH], start, stop, outputs=range(max(BOUND - start, 0), stop - start)
        )
        cache, (logits,) = model.prefill(cache, [part], rows_bucket, truncation)
        kept.append(logits)
    decoded = []
    for position in range(LENGTH, LENGTH + DECODED):
        token_ids = np.full((SLOTS, 1), tokens[position])
        start = np.where(np.arange(SLOTS) == 0, position, -1)
        cache, logits = model.decode(cache, token_ids, start)
        decoded.append(logits[0])
    return np.concatenate(kept), np.concatenate(decoded)


@pytest.mark.parametrize("cuts", CUTS)
def test_compact_equals_mask(few, cuts):
    tokens = few.tokens(LENGTH + DECODED)
    mask = run(few, tokens, cuts, MASK, PLAIN)
    compact = run(few, tokens, cuts, COMPACT, COMPACTED)
    assert mask[0].shape[0] == KEEP
    assert_same_bits(compact[0], mask[0], "prompt rows")
    assert_same_bits(compact[1], mask[1], "decoded rows")


def test_cuts_do_not_matter(few):
    tokens = few.tokens(LENGTH + DECODED)
    first, second = (run(few, tokens, cuts, MASK, PLAIN) for cuts in CUTS[:2])
    assert_same_bits(first[0], second[0])
    assert_same_bits(first[1], second[1])


def test_truncation_is_another_model(few):
    """Rows right after the bound lose window keys; everything after inherits the difference."""
    tokens = few.tokens(LENGTH + DECODED)
    off = run(few, tokens, CUTS[0], Truncation(), PLAIN)
    mask = run(few, tokens, CUTS[0], MASK, PLAIN)
    assert np.abs(off[0] - mask[0]).max(axis=1)[: WINDOW - 1].min() > 1e-2
    assert not np.array_equal(off[1], mask[1])


def test_a_prompt_within_the_suffix_is_not_truncated(few):
    tokens = few.tokens(KEEP)
    whole = few.whole(tokens, PLAIN)
    _, (compact,) = few.prefill(few.fresh(), [piece(tokens, 0, KEEP)], COMPACTED, COMPACT)
    assert_same_bits(compact, whole)


def test_dropped_rows_have_no_logits(few):
    with pytest.raises(ValueError, match="row 3 of a slice has no logits"):
        few.prefill(
            few.fresh(),
            [piece(few.tokens(LENGTH), 0, 64, outputs=[3])],
            COMPACTED,
            COMPACT,
        )


@pytest.mark.parametrize(
    ("truncation", "message"),
    [
        (Truncation("half", KEEP), "must be one of off, mask, compact"),
        (Truncation("mask", 13), "it must be at least 14"),
    ],
)
def test_impossible_truncation(truncation, message):
    with pytest.raises(ValueError, match=message):
        truncation.check(config.tiny(), rollback=6)


# Replay: a sequence whose first block is found in the cache starts again shortly before its end.
HIT = 128


@pytest.fixture(scope="module")
def stored(few):
    """A prompt, the cache after its prefill in slot 0, and its logits."""
    tokens = few.tokens(176, seed=3)
    cache, logits = few.fresh(), []
    for start in range(0, len(tokens), 64):
        stop = min(start + 64, len(tokens))
        cache, (rows,) = few.prefill(cache, [piece(tokens, start, stop)], PLAIN)
        logits.append(rows)
    return tokens, cache, np.concatenate(logits)


def replay(few, stored, start, cuts, **options):
    """Run the stored prompt again from `start` in slot 5, whose rings are garbage."""
    tokens, cache, _ = stored
    cache = jax.tree.map(jnp.copy, cache)
    shared = np.concatenate([blocks_of(0)[:1], blocks_of(5)[1:]])
    logits = []
    bounds = [start, *cuts, len(tokens)]
    for first, stop in pairwise(bounds):
        part = piece(tokens, first, stop, slot=5, blocks=shared, stored_length=HIT, **options)
        cache, (rows,) = few.prefill(cache, [part], PLAIN)
        logits.append(rows)
    return cache, np.concatenate(logits)


def test_exact_replay_changes_nothing(few, stored):
    """Cache on = cache off when everything is computed again (law 3)."""
    _, logits = replay(few, stored, 0, (64, 128))
    assert_same_bits(logits, stored[2])


def test_replayed_rows_do_not_rewrite_stored_blocks(few, stored):
    cache, _ = replay(few, stored, HIT - 16, (), valid_start=HIT - 16)
    block = blocks_of(0)[0]
    for ratio in few.config.ratios:
        for after, before in ((cache.main, stored[1].main), (cache.index, stored[1].index)):
            for left, right in zip(
                jax.tree.leaves(after[ratio]), jax.tree.leaves(before[ratio]), strict=True
            ):
                left, right = np.asarray(left[:, block]), np.asarray(right[:, block])
                assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("start", [HIT - 16, HIT - 8, HIT - 7, HIT])
def test_history_before_a_replay_is_absent(few, stored, start):
    """Whatever the rings held is never read, and cuts do not matter; odd starts included."""
    _, logits = replay(few, stored, start, (), valid_start=start)
    _, cut = replay(few, stored, start, (HIT + 1, HIT + 20), valid_start=start)
    assert np.isfinite(logits).all()
    assert_same_bits(cut, logits)
    difference = np.abs(logits - stored[2][start:]).max(axis=1)
    assert difference[: WINDOW - 1].min() > 1e-3  # shortened windows: bounded replay is another law


def test_images_stop_the_look_back(few):
    """Ids outside the vocabulary are images: no cut loses sight of one within reach."""
    tokens = few.tokens(48, seed=9)
    tokens[[9, 10, 30]] = few.config.vocab_size + 5
    whole = few.whole(tokens, PLAIN)
    for cut in (9, 10, 11, 12, 13, 14, 31, 33):
        cache, (before,) = few.prefill(few.fresh(), [piece(tokens, 0, cut)], PLAIN)
        _, (after,) = few.prefill(cache, [piece(tokens, cut, 48)], PLAIN)
        assert_same_bits(np.concatenate([before, after]), whole, f"cut at {cut}")
