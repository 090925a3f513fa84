"""Recorded requests of the official package: equal conversations, prompts, ranges and errors."""

from __future__ import annotations

import importlib.util
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


IMAGES_TO_READ = "image_resolve"  # the dialect of cases that decode and scale images
needs_shared = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs the recorded cases in ../shared"
)
needs_pillow = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None, reason="reading images needs Pillow"
)


def check(path: Path, *, of_images: bool = False) -> int:
    """Run the cases of a file that read images, or all others; the number of cases."""
    runner = CaseRunner(dsinfer_jax.recipe, path.parent)
    cases = [case for case in load_cases(path) if (case["dialect"] == IMAGES_TO_READ) == of_images]
    for case in cases:
        found = differences(case, runner)
        assert not found, "\n".join([case["name"], *found])
    return len(cases)


def test_a_copy_of_some_cases() -> None:
    assert check(COPY / "request_cases.jsonl") > 200


@needs_pillow
def test_a_copy_of_some_images() -> None:
    assert check(COPY / "request_cases.jsonl", of_images=True) > 5


@needs_shared
@pytest.mark.parametrize("name", FILES)
def test_all_cases(name: str) -> None:
    assert check(FOLDER / f"{name}.jsonl") > 0


@needs_shared
@needs_pillow
def test_all_images() -> None:
    assert check(FOLDER / "images.jsonl", of_images=True) > 20


def test_images_without_pillow_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    cases = load_cases(COPY / "request_cases.jsonl")
    case = next(case for case in cases if case["name"] == "image-resolve-square-544")
    [call] = CaseRunner(dsinfer_jax.recipe, COPY).run(case)["calls"]
    assert call["error"]["message"].startswith("Images need Pillow, which is not installed")


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
