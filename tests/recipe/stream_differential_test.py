"""Random model outputs in random pieces through the official package and ours: equal bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_support import TOKENIZER_JSON, Run, Streams, describe_difference, random_run

import dsinfer_jax.recipe

official_package = pytest.importorskip("deepseek_recipe")

RUNS = 700
RUNS_OF_IDS = 300
NIGHTLY_RUNS = 14_000
NIGHTLY_RUNS_OF_IDS = 6_000
UNKNOWN_ID = 999_999


@pytest.fixture(scope="module")
def ours() -> Streams:
    return Streams(dsinfer_jax.recipe, TOKENIZER_JSON)


@pytest.fixture(scope="module")
def official() -> Streams:
    return Streams(official_package, TOKENIZER_JSON)


def assert_equal(run: Run, ours: Streams, official: Streams, share: float = 1.0) -> None:
    mine, theirs = ours.run(run, share=share), official.run(run, share=share)
    assert mine == theirs, describe_difference(run, mine, theirs)


def random_run_of_ids(rng: random.Random, tokenizer: Any) -> Run:
    """Ids with a few strange ones among them, sometimes text between, sometimes logprobs."""

    def encode(text: str) -> list[int]:
        ids = tokenizer.encode(text)
        for _ in range(rng.choice([0, 0, 1, 3])):
            strange = rng.choice([0, 1, 5, 6, 14, UNKNOWN_ID, rng.randrange(1024)])
            ids.insert(rng.randint(0, len(ids)), strange)
        return ids

    run = random_run(rng, encode)
    with_logprobs = rng.random() < 0.2
    pieces: list[Any] = []
    for ids in run.pieces:
        if rng.random() < 0.03:
            pieces.append(rng.choice(["", "text", "</think>", "<", "｜DSML｜", ";"]))
        elif with_logprobs:
            pieces.append((ids, [random_logprob(rng) for _ in ids]))
        else:
            pieces.append(ids)
    return replace(run, pieces=pieces)


def random_logprob(rng: random.Random) -> tuple[float, list[tuple[int, float]]]:
    value = rng.choice([-0.5, -1e-7, 0.0, -123456.789, -1e20, float("-inf"), float("nan"), -0.1])
    return value, [(rng.randrange(1100), -1.5) for _ in range(rng.choice([0, 1, 3]))]


def repeated(examples: int) -> Callable[[Any], Any]:
    """The same examples in every run; what fails is replayed by its seed."""
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None)


nightly = settings(deadline=None, max_examples=NIGHTLY_RUNS, database=None)
nightly_of_ids = settings(nightly, max_examples=NIGHTLY_RUNS_OF_IDS)
seeds = st.integers(0, 2**63)


@repeated(RUNS)
@given(seed=seeds)
def test_text_equals_the_official_package(ours: Streams, official: Streams, seed: int) -> None:
    assert_equal(random_run(random.Random(seed)), ours, official)


@repeated(RUNS_OF_IDS)
@given(seed=seeds)
def test_ids_equal_the_official_package(ours: Streams, official: Streams, seed: int) -> None:
    assert_equal(random_run_of_ids(random.Random(seed), ours.tokenizer), ours, official)


@repeated(150)
@given(seed=seeds)
def test_bodies_of_some_events_equal_the_official_ones(
    ours: Streams, official: Streams, seed: int
) -> None:
    """Events get lost or come late; late ready chunks do not count."""
    rng = random.Random(seed)
    run = random_run(rng)
    pieces = [piece for each in run.pieces for piece in ([None] * (rng.random() < 0.05) + [each])]
    assert_equal(replace(run, pieces=pieces), ours, official, share=rng.choice([0.5, 0.8, 0.95]))


@pytest.mark.slow
@nightly
@given(seed=seeds)
def test_much_text_equals_the_official_package(ours: Streams, official: Streams, seed: int) -> None:
    assert_equal(random_run(random.Random(seed)), ours, official)


@pytest.mark.slow
@nightly_of_ids
@given(seed=seeds)
def test_many_ids_equal_the_official_package(ours: Streams, official: Streams, seed: int) -> None:
    assert_equal(random_run_of_ids(random.Random(seed), ours.tokenizer), ours, official)
