"""The streaming benchmark measures the same work on both sides."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from stream_support import TOKENIZER_JSON

import dsinfer_jax.recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from bench_recipe_streaming import comparisons
from side_by_side import compare


def test_both_packages_do_the_same_work() -> None:
    official = pytest.importorskip("deepseek_recipe")
    # Making a comparison runs both sides once and refuses unequal output.
    rows = list(comparisons(dsinfer_jax.recipe, official, TOKENIZER_JSON))
    assert len({row.name for row in rows}) == len(rows) == 27
    outcome = compare(rows[0], repeats=1, seconds=0.001)
    assert outcome.ours > 0
    assert outcome.lowest <= outcome.ratio <= outcome.highest
