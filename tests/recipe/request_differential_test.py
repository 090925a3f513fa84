"""Random requests through the official package and ours: equal results, or equal errors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conversation_maker import make_conversation
from hypothesis import given, settings
from hypothesis import strategies as st
from request_maker import RequestMaker
from small_tokenizer import small_tokenizer_json

import dsinfer_jax.recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from recipe_cases import Case, CaseRunner, compare_results

official_package = pytest.importorskip("deepseek_recipe")

REQUESTS = 1_000
NIGHTLY_REQUESTS = 20_000
CONVERSATIONS = 500
NIGHTLY_CONVERSATIONS = 20_000
DAMAGED_TEXTS = 500
NIGHTLY_DAMAGED_TEXTS = 20_000
SEEDS = st.integers(0, 2**48)
SNIPPETS = (
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"0", b"-", b"1e", b"\\ud800", b"\\u",
    b"\xff", b"\xe4\xb8", b"nul", b"NaN", b"\x01", b"1e999", b"-0", b"01", b"9" * 30,
)  # fmt: skip
# The reference names any one of several calls without output.
ANY_CALL = re.compile(r"(No tool output found for tool call )[^. ]*")


def make_case(seed: int) -> Case:
    """A request with options, a quarter of them damaged in one place."""
    maker = RequestMaker(Random(seed))
    dialect = maker.pick(("chat", "responses", "messages"))
    request = getattr(maker, dialect)()
    if maker.chance(0.25):
        request = maker.damaged(request)
    case: Case = {
        "name": str(seed),
        "dialect": dialect,
        "request": request,
        "options": maker.options(),
        "resolve": [[10, 100], [5, 10**6]],
    }
    if maker.chance(0.3):
        case["request_text"] = json.dumps(request, ensure_ascii=maker.chance(0.5))
    if not case["options"].get("special_tokens"):
        case["tokenizer"] = "small"
    return case


class SmallTokenizerRunner(CaseRunner):
    """Runs cases with the small tokenizer instead of one from a folder."""

    def __init__(self, package: Any) -> None:
        super().__init__(package, Path("unused"))
        self._tokenizer = package.Tokenizer.from_str(small_tokenizer_json())


OFFICIAL = SmallTokenizerRunner(official_package)
OURS = SmallTokenizerRunner(dsinfer_jax.recipe)


def without_choice_of_call(result: Any) -> Any:
    return json.loads(ANY_CALL.sub(r"\1", json.dumps(result)))


def assert_equal(seed: int) -> None:
    case = make_case(seed)
    expected = without_choice_of_call(OFFICIAL.run(case))
    got = without_choice_of_call(OURS.run(case))
    found = compare_results(expected, got)
    assert not found, "\n".join([json.dumps(case, ensure_ascii=False), *found])


@settings(max_examples=REQUESTS, deadline=None)
@given(SEEDS)
def test_random_requests(seed: int) -> None:
    assert_equal(seed)


@pytest.mark.slow
@settings(max_examples=NIGHTLY_REQUESTS, deadline=None)
@given(SEEDS)
def test_many_random_requests(seed: int) -> None:
    assert_equal(seed)


def damaged_text(seed: int) -> tuple[str, bytes]:
    """The class to read with, and the bytes of a body that is probably no JSON."""
    random = Random(seed)
    maker = RequestMaker(random)
    name, method = maker.pick(
        (
            ("ChatCompletionRequest", maker.chat),
            ("ResponsesRequest", maker.responses),
            ("MessagesRequest", maker.messages),
        )
    )
    indent = maker.pick((None, None, 1))
    text = json.dumps(method(), ensure_ascii=maker.chance(0.5), indent=indent).encode()
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(text) + 1)
        kind = random.randint(0, 3)
        if kind == 0:
            text = text[:at] + text[at + 1 :]
        elif kind == 1:
            text = text[:at] + random.choice(SNIPPETS) + text[at:]
        elif kind == 2:
            text = text[:at]
        else:
            text = text[:at] + bytes([random.randrange(256)]) + text[at + 1 :]
    return name, text


def outcome(package: Any, name: str, text: bytes) -> str:
    try:
        getattr(package, name)(text)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def assert_equal_reading(seed: int) -> None:
    name, text = damaged_text(seed)
    assert outcome(dsinfer_jax.recipe, name, text) == outcome(official_package, name, text)


@settings(max_examples=DAMAGED_TEXTS, deadline=None)
@given(SEEDS)
def test_damaged_texts(seed: int) -> None:
    assert_equal_reading(seed)


@pytest.mark.slow
@settings(max_examples=NIGHTLY_DAMAGED_TEXTS, deadline=None)
@given(SEEDS)
def test_many_damaged_texts(seed: int) -> None:
    assert_equal_reading(seed)


def assert_equal_conversations(seed: int) -> None:
    maker = RequestMaker(Random(seed))
    case: Case = {
        "name": str(seed),
        "dialect": "conversation",
        "conversation": make_conversation(maker),
        "model_version": maker.pick(("DeepseekV4Pro", "DeepseekV41Flash")),
    }
    if maker.chance(0.15):
        case["special_tokens"] = maker.spellings()
    else:
        case["tokenizer"] = "small"
    found = compare_results(OFFICIAL.run(case), OURS.run(case))
    assert not found, "\n".join([json.dumps(case, ensure_ascii=False), *found])


@settings(max_examples=CONVERSATIONS, deadline=None)
@given(SEEDS)
def test_random_conversations(seed: int) -> None:
    assert_equal_conversations(seed)


@pytest.mark.slow
@settings(max_examples=NIGHTLY_CONVERSATIONS, deadline=None)
@given(SEEDS)
def test_many_random_conversations(seed: int) -> None:
    assert_equal_conversations(seed)
