"""Recorded streams of the official package: the same bytes for every push and every body."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dsinfer_jax.recipe

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from recipe_cases import CaseRunner, differences, load_cases  # noqa: E402

COPY = ROOT / "tests/data/recipe"
FOLDER = ROOT / "../shared/recipe_cases"


def check(path: Path) -> int:
    """Run all cases of a file; the number of cases."""
    runner = CaseRunner(dsinfer_jax.recipe, path.parent)
    cases = list(load_cases(path))
    for case in cases:
        found = differences(case, runner)
        assert not found, "\n".join([case["name"], *found])
    return len(cases)


def test_a_copy_of_some_cases() -> None:
    assert check(COPY / "stream_cases.jsonl") == 39


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the recorded cases in ../shared")
@pytest.mark.parametrize("name", ["chat", "responses", "messages", "parser"])
def test_all_cases(name: str) -> None:
    assert check(FOLDER / f"stream_{name}.jsonl") > 0
