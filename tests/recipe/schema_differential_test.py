"""Random schemas and patterns: the verdict of the official package, in its words."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsinfer_jax.recipe as ours

official = pytest.importorskip("deepseek_recipe")

SCHEMAS = 400
NIGHTLY_SCHEMAS = 20_000
SEEDS = st.integers(0, 2**48)
DRAFTS = (
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-04/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
SINGLE = ("items", "contains", "additionalProperties", "propertyNames", "if", "then", "not")
MANY = ("allOf", "anyOf", "oneOf")
NAMED = ("definitions", "properties", "patternProperties")
REFERENCES = ("#", "#/definitions/a", "#/properties/a", "#/nope", "#a", "x", "http://x/y")
OTHERS: dict[str, tuple[Any, ...]] = {
    "type": ("object", "string", ["string", "null"], "bogus"),
    "$ref": REFERENCES,
    "required": (["a"], ["a", "b"]),
    "enum": ([1, "a"],),
    "pattern": ("^a$", "(", "[a-z]+", "\\d", "a{2,1}", "(?=a)b", "[]a]"),
    "minLength": (0, 3, 1.0, -1),
    "multipleOf": (1, 0.5, 0),
    "uniqueItems": (True, 7),
    "title": ("t", 7),
    "description": ("t",),
    "format": ("email", 7),
    "default": (1, {}),
    "const": (None, 1),
    "exclusiveMinimum": (1, True),
    "minimum": (1, "x"),
    "$comment": ("c",),
}
WRONG = (7, -1, "x", None, True, [], {}, [7], {"a": 7})


def make_schema(random: Random, depth: int) -> Any:
    """A schema of a few keywords; some values are wrong."""
    keywords = (*SINGLE, *MANY, *NAMED, *OTHERS)
    return {
        keyword: make_value(random, keyword, depth)
        for keyword in random.sample(keywords, random.randint(1, 3))
    }


def make_value(random: Random, keyword: str, depth: int) -> Any:
    if random.random() < 0.08 or (depth == 0 and keyword not in OTHERS):
        return random.choice(WRONG)
    if keyword in SINGLE:
        return make_schema(random, depth - 1)
    if keyword in MANY:
        return [make_schema(random, depth - 1) for _ in range(random.randint(1, 2))]
    if keyword in NAMED:
        return {name: make_schema(random, depth - 1) for name in random.sample("abc", 2)}
    return random.choice(OTHERS[keyword])


def verdict(package: Any, schema: Any) -> str:
    described = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {
        "model": "DeepSeek-V4.1-Flash",
        "messages": [{"role": "user", "content": "x"}],
        "response_format": described,
    }
    try:
        package.ChatCompletionRequest(body).convert(package.ConversionOptions())
    except package.ConversionError as error:
        return str(error)
    return "good"


def assert_same_verdict(seed: int) -> None:
    random = Random(seed)
    schema = make_schema(random, 2)
    if random.random() < 0.5:
        schema = {"$schema": random.choice(DRAFTS), **schema}
    assert verdict(ours, schema) == verdict(official, schema), schema


@settings(max_examples=SCHEMAS, deadline=None)
@given(SEEDS)
def test_random_schemas(seed: int) -> None:
    assert_same_verdict(seed)


@pytest.mark.slow
@settings(max_examples=NIGHTLY_SCHEMAS, deadline=None)
@given(SEEDS)
def test_many_random_schemas(seed: int) -> None:
    assert_same_verdict(seed)


PATTERNS = (
    "(?>a)", "a++", "(?<n>a)\\k<n>", "(?P<n>a)", "(?i)a", "(?i)*", "(?<=a+)b", "\\Z", "\\h", "\\0",
    "(a)\\1", "\\1", "\\x{41}", "\\u{110000}", "\\cA", "\\p{L}", "\\p{Zz}", "\\-", "\\é", "[]",
    "[^]", "[a-\\d]", "[\\w-.]", "[b-a]", "[[a]]", "[[^a]", "[a--b]", "{", "}", "a{,3}", "a{2,1}",
    "a**", "a*{2}", "a{1}{2}", "*a", "(", ")", "(?#c)", "(?<n>a)(?<n>b)", "a{99999}",
    "(a{1000}){1000}", "(?=a)*", "(?ii)", "(?i-s:a)", "\\ud83d", "\\", "[\\b]", "^*", "()", "(?R)",
)  # fmt: skip


@pytest.mark.parametrize("draft", [DRAFTS[0], DRAFTS[4]])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern: str, draft: str) -> None:
    # In a definition nobody refers to only the format is checked, and only by old drafts.
    for schema in ({"pattern": pattern}, {"definitions": {"a": {"pattern": pattern}}}):
        described = {"$schema": draft, **schema}
        assert verdict(ours, described) == verdict(official, described)
