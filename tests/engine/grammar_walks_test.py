"""Random walks through what the masks allow: every output must parse by an independent reader.

A walk takes any allowed token, and after a while prefers tokens that close something, so that it
ends. The readers know nothing of grammars: `re`, `json`, `jsonschema`, `ast`, `xml.etree`, and the
protocol layer's own stream parser for tool calls.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import noise_model
import numpy as np
import pytest

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.slot_state import mask_words
from dsinfer_jax.engine.structured_output import StructuredOutput
from dsinfer_jax.recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ConversionOptions,
    InferenceChunk,
    InferenceFinishReason,
    StreamProcessor,
    Tokenizer,
)

pytest.importorskip("llguidance", reason="the grammar extra is not installed")

from dsinfer_jax.engine.grammar import Matcher, Vocabulary
from dsinfer_jax.engine.grammar_compiler import GrammarCompiler

VOCAB, MARKER = 512, 9
ENDS = (1, 2)
FREE, LONGEST = 60, 2000  # steps before tokens that close are preferred, and altogether
WHOLE = 0.99  # of the walks must end

THINKS_NOT = {"type": "disabled"}

Check = Callable[[list[int], str], None]


@dataclass(frozen=True)
class Case:
    """A constraint, the characters that bring its outputs to an end, and who reads them."""

    output: StructuredOutput
    closers: str
    check: Check


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    """A small vocabulary with two tokens that end an output."""
    config, _, tokenizer = noise_model.load()
    codec = TextCodec(tokenizer, config.bos_token_id)
    tokens = [codec.token_bytes(token) for token in range(VOCAB - 1)]
    return Vocabulary([*tokens, b""], sorted(codec.control_tokens.values()), ENDS)


@pytest.fixture(scope="module")
def compiler(words: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(words, MARKER)
    yield compiler
    compiler.close()


def allowed(matcher: Matcher) -> np.ndarray:
    mask = np.zeros(mask_words(VOCAB), np.int32)
    matcher.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB])


def walk(
    matcher: Matcher, random: np.random.Generator, closers: Sequence[int], slash: int
) -> list[int] | None:
    """The tokens of a whole output, without the end; None if it does not end in time."""
    tokens: list[int] = []
    free = random.integers(FREE)
    while len(tokens) < LONGEST:
        choice = allowed(matcher)
        may_end = ENDS[0] in choice
        assert may_end == matcher.may_stop == (ENDS[1] in choice)
        rest = choice[~np.isin(choice, ENDS)]
        if may_end and (len(tokens) >= free or not len(rest) or random.random() < 0.3):
            assert matcher.accept(ENDS[len(tokens) % 2])
            return tokens
        if len(tokens) >= free:
            # where a marker may come, it ends a text, or a slash before it ends what is around it
            closing = rest[np.isin(rest, [MARKER, slash] if MARKER in rest else closers)]
            rest = closing if len(closing) else rest
        token = int(random.choice(rest))
        assert matcher.accept(token)
        tokens.append(token)
    return None


def matches(pattern: str) -> Case:
    def check(tokens: list[int], text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return Case(StructuredOutput("regex", pattern), "", check)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def strict_json(text: str) -> Any:
    return json.loads(text, parse_constant=refuse_constant)


def satisfies(schema: dict[str, Any]) -> Case:
    def check(tokens: list[int], text: str) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        kind = jsonschema.Draft202012Validator
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(strict_json(text))

    return Case(StructuredOutput("json_schema", json.dumps(schema)), '"}]@', check)


def closed(properties: dict[str, Any], **rules: Any) -> dict[str, Any]:
    """An object with all of these members and no others."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required,
            "additionalProperties": False, **rules}  # fmt: skip


SCHEMAS: dict[str, dict[str, Any]] = {
    "members": closed(
        {
            "n": {"type": "integer", "minimum": -3, "maximum": 12},
            "s": {"type": "string", "maxLength": 6},
            "k": {"enum": ["red", 5, None, 'a"é\n']},
            "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        }
    ),
    "optional members": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"const": [1, "x"]}},
        "required": ["b"],
        "additionalProperties": {"type": "integer"},
    },
    "union": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-f]{1,4}$"}]},
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": closed(
                {"c": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1}}
            )
        },
    },
    "numbers": {
        "type": "array",
        "prefixItems": [
            {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25},
            {"type": "integer", "multipleOf": 7, "minimum": 0},
            {"type": "number"},
        ],
        "items": {"type": "integer", "exclusiveMaximum": 0},
        "minItems": 3,
        "maxItems": 5,
    },
    "texts": closed(
        {
            "p": {"type": "string", "pattern": "^[^0-9]{0,4}é?$"},
            "l": {"type": "string", "minLength": 2, "maxLength": 5},
            "u": {"type": "string", "format": "uuid"},
            "i": {"type": "string", "format": "ipv4"},
            "e": {"type": "string", "format": "email"},
        }
    ),
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string", "maxLength": 3}}, "required": ["b"]},
        ]
    },
}


def object_only(tokens: list[int], text: str) -> None:
    assert isinstance(strict_json(text), dict)


SUMS = """start: sum
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: NUMBER | "(" sum ")"
NUMBER: /0|[1-9][0-9]{0,2}/
"""


def is_a_sum(tokens: list[int], text: str) -> None:
    """Only numbers of at most three digits and the four operations, without blanks."""
    assert re.fullmatch(r"[-+*/()0-9]+", text)
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Constant):
            assert type(node.value) is int
            assert node.value < 1000
        else:
            kinds = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div)
            assert isinstance(node, kinds), ast.dump(node)


ELEMENTS = """start: a
a: "<a>" (a | b | TEXT)* "</a>"
b: "<b x='" VALUE "'/>"
TEXT: /[^<>&\\x00-\\x1f\\x7f-\\x9f\\ufffe\\uffff]{1,5}/
VALUE: /[a-z0-9]*/
"""


def is_an_element(tokens: list[int], text: str) -> None:
    root = ElementTree.fromstring(text)
    assert {one.tag for one in root.iter()} <= {"a", "b"}
    assert all(not list(one) and list(one.attrib) == ["x"] for one in root.iter("b"))


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in {
        "f": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "u": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "e": {"enum": ["1", 1, None]},
                "o": {"type": "object", "properties": {"z": {"type": "string"}}},
            },
            "required": ["city", "u"],
            "additionalProperties": False,
        },
        "g": {"type": "object"},
        "h": closed({"o": {"type": "string", "minLength": 1, "maxLength": 3}}),
        "none": closed({}),
    }.items()
]


def called(required: bool) -> Case:
    """Calls as the stream parser reads them, by ids, with the options of the request."""
    body: dict[str, Any] = {"model": "DeepSeek-V4.1-Flash", "tools": TOOLS}
    body["messages"] = [{"role": "user", "content": "go"}]
    body["tool_choice"], body["thinking"] = "required" if required else "auto", THINKS_NOT
    request = ChatCompletionRequest(body).convert(ConversionOptions())
    constraint = request.inference_options.output_constraint
    assert constraint is not None
    output = StructuredOutput.of_constraint(
        constraint.kind, constraint.schema, thinking_end=[4], marker=MARKER
    )
    assert output.after_marker is required
    tokenizer = Tokenizer.from_file(str(noise_model.load()[2]))
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}

    def check(tokens: list[int], text: str) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        generator = ChatCompletionRequest.chunk_generator(request, "I", "M")
        processor = StreamProcessor(generator, request.parsing_options, tokenizer)
        response = ChatCompletionResponse("I", "M", 0, 10, 3)
        for chunk in (
            InferenceChunk.ready(),
            InferenceChunk.tokens(tokens),
            InferenceChunk.finish(InferenceFinishReason.Stop),
        ):
            for event in processor.push(chunk):
                response.accumulate(event)
        for event in processor.finish():
            response.accumulate(event)
        choice = json.loads(response.to_json())["choices"][0]
        assert choice["finish_reason"] == "tool_calls", text
        calls = [call["function"] for call in choice["message"]["tool_calls"]]
        assert len(calls) == text.count(" invoke name=")
        for call in calls:
            jsonschema.validate(strict_json(call["arguments"]), schemas[call["name"]])

    return Case(output, '</"}]', check)


CASES: dict[str, Case] = {
    "regex: bounded": matches(r"[a-e]{3,6}-[0-9]{2}|(ab|cd)*x"),
    "regex: any character": matches(r"(?s:.{0,9})é[^\x00-\x1f]+"),
    "regex: alternatives": matches(r"(?:yes|no|(?:may(?:be)?){1,3}) ?[A-Z]?[a\-z]+\.?"),
    **{f"json_schema: {name}": satisfies(schema) for name, schema in SCHEMAS.items()},
    "json_object": Case(StructuredOutput("json_object"), '"}]', object_only),
    "lark: sums": Case(StructuredOutput("lark", SUMS), ")", is_a_sum),
    "lark: elements": Case(StructuredOutput("lark", ELEMENTS), "</>'", is_an_element),
    "tool_calls: at will": called(required=False),
    "tool_calls: required": called(required=True),
}


@pytest.mark.parametrize("walks", [50, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_whatever_the_masks_allow_is_right(
    words: Vocabulary, compiler: GrammarCompiler, name: str, walks: int
) -> None:
    case = CASES[name]
    random, whole = np.random.default_rng(5), 0
    closers = words(case.closers)
    trigger = case.output.trigger_token_ids
    before = [*words("<"), *trigger] if trigger else []  # the free part of the output
    for _ in range(walks):
        matcher = compiler.submit(case.output).result()
        assert all(map(matcher.accept, before))
        tokens = walk(matcher, random, closers, words("/")[0])
        if tokens is not None:
            whole += 1
            tokens = [*before, *tokens]
            case.check(tokens, b"".join(words.tokens[token] for token in tokens).decode())
    assert whole >= WHOLE * walks
