"""Grammars are made ready in a worker: limits, refusals, cancelling, cache."""

import json
import time
from collections.abc import Iterator
from typing import Any

import noise_model
import pytest

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.structured_output import GrammarError, StructuredOutput

pytest.importorskip("llguidance", reason="the grammar extra is not installed")

from dsinfer_jax.engine.grammar_compiler import GrammarCompiler, compiler_for

ANY = StructuredOutput("json_object")


def nested(depth: int) -> dict[str, Any]:
    """2 ^ depth schemas."""
    if depth == 0:
        return {"type": "integer"}
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {name: nested(depth - 1)},
                "required": [name],
                "additionalProperties": False,
            }
            for name in "ab"
        ]
    }


HOSTILE = StructuredOutput("json_schema", json.dumps(nested(12)))  # two seconds to build


def make() -> GrammarCompiler:
    config, _, tokenizer = noise_model.load()
    return compiler_for(TextCodec(tokenizer, config.bos_token_id), config.vocab_size, [1])


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = make()
    yield made
    made.close()


def test_every_kind_gives_a_matcher(compiler: GrammarCompiler) -> None:
    tools = json.dumps([{"function": {"name": "f", "parameters": {}}}])
    for output in (
        ANY,
        StructuredOutput("json_schema", '{"type": "integer"}'),
        StructuredOutput("regex", "a|b"),
        StructuredOutput("lark", 'start: "a" | "b"'),
        StructuredOutput("tool_calls", tools, (9,)),
        StructuredOutput("tool_calls", tools, after_marker=True),
    ):
        matcher = compiler.submit(output).result()
        assert matcher.constrained == (not output.trigger_token_ids)


def test_refusals_are_sentences_and_the_worker_goes_on(compiler: GrammarCompiler) -> None:
    for output in (
        StructuredOutput("json_schema", '{"not": {}}'),
        StructuredOutput("regex", "(?=a)b"),
        StructuredOutput("lark", "start: nowhere"),
        StructuredOutput("tool_calls", "[]", (9,)),
    ):
        with pytest.raises(GrammarError, match=r"^the (constraint|list) .*\w"):
            compiler.submit(output).result()
    assert compiler.submit(ANY).result().constrained


def test_equal_constraints_are_built_once_and_do_not_share_state(
    compiler: GrammarCompiler,
) -> None:
    first, second = (compiler.submit(ANY).result() for _ in range(2))
    token = next(token for token in range(512) if first.accept(token))
    assert second.accept(token)
    assert len([grammar for grammar in compiler._cache if "object" in grammar]) >= 1


def test_time_is_limited() -> None:
    """S14: the worker is ended, and the next grammar gets a new one."""
    compiler = make()
    try:
        compiler.submit(ANY).result()
        compiler._seconds = 0.2
        start = time.monotonic()
        with pytest.raises(GrammarError, match=r"not ready after 0\.2 s; make it smaller"):
            compiler.submit(HOSTILE).result()
        assert time.monotonic() - start < 5
        compiler._seconds = 20.0
        assert compiler.submit(StructuredOutput("regex", "ab")).result().constrained
    finally:
        compiler.close()


def test_memory_is_limited() -> None:
    compiler = GrammarCompiler(make()._vocabulary, None, memory_bytes=4 << 20)
    try:
        words = json.dumps({"enum": [f"value{number * 7919}" for number in range(50_000)]})
        with pytest.raises(GrammarError, match=r"more memory than it may|cannot be enforced"):
            compiler.submit(StructuredOutput("json_schema", words)).result()
    finally:
        compiler.close()


def test_cancelled_work_stops() -> None:
    compiler = make()
    try:
        compiler.submit(ANY).result()
        under_way, waiting = (compiler.submit(HOSTILE) for _ in range(2))
        waiting.cancel()
        under_way.cancel()
        start = time.monotonic()
        assert compiler.submit(StructuredOutput("regex", "x")).result().constrained
        assert time.monotonic() - start < 15  # a new worker may have had to start
    finally:
        compiler.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("xml", "a"), "kind is 'xml'; it must be one of"),
        (("regex",), "source is ''; it must be empty for json_object and only then"),
        (("json_object", "{}"), "source is '{}'; it must be empty"),
        (("regex", "a" * (1 << 20) + "a"), "source has 1048577 characters"),
        (("regex", "a", (-1,)), "trigger_token_ids is"),
        (("regex", "a", (5,) * 256), "trigger_token_ids is"),
    ],
)
def test_bad_constraints_are_refused_at_once(arguments: tuple[object, ...], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        StructuredOutput(*arguments)  # type: ignore[arg-type]
    assert str(error.value).startswith(sentence)


def test_constraints_of_the_recipe() -> None:
    def made(kind: str, schema: str) -> StructuredOutput:
        return StructuredOutput.of_constraint(kind, schema, thinking_end=[4], marker=9)

    assert made("json", "") == StructuredOutput("json_object", "", (4,))
    assert made("json", "{}") == StructuredOutput("json_schema", "{}", (4,))
    assert made("regex", "a") == StructuredOutput("regex", "a", (4,))
    assert made("tool_call", "[]") == StructuredOutput("tool_calls", "[]", (9,))
    assert made("tool_call_required", "[]") == StructuredOutput(
        "tool_calls", "[]", after_marker=True
    )
    with pytest.raises(ValueError, match="kind is 'xml'"):
        made("xml", "")
