"""Recorded requests of the official package: equal conversations, prompts, ranges and errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dsinfer_jax.recipe

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_recipe  # noqa: E402
from recipe_cases import CaseRunner, differences, load_cases  # noqa: E402

COPY = ROOT / "tests/data/recipe"
FOLDER = ROOT / "../shared/recipe_cases"
FILES = (
    "chat_requests",
    "responses_requests",
    "messages_requests",
    "request_errors",
    "conversations",
    "images",
)


def check(path: Path) -> int:
    """Run all cases of a file; the number of cases."""
    runner = CaseRunner(dsinfer_jax.recipe, path.parent)
    cases = list(load_cases(path))
    for case in cases:
        found = differences(case, runner)
        assert not found, "\n".join([case["name"], *found])
    return len(cases)


def test_a_copy_of_some_cases() -> None:
    assert check(COPY / "request_cases.jsonl") > 200


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the recorded cases in ../shared")
@pytest.mark.parametrize("name", FILES)
def test_all_cases(name: str) -> None:
    assert check(FOLDER / f"{name}.jsonl") > 0


def test_the_checker_notices_a_wrong_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (COPY / "request_cases.jsonl").read_text(encoding="utf-8").splitlines()[:2]
    changed = bad.replace("expected", "awaited").replace('"message":"', '"message":"x')
    assert changed != bad
    (tmp_path / "cases.jsonl").write_text(f"{good}\n{changed}\n", encoding="utf-8")
    assert check_recipe.main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert printed.endswith("1 passed, 1 failed\n")
    assert "FAIL cases.jsonl" in printed
