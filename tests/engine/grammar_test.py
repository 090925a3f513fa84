"""Grammars over tokens: known faults of structured output, drafts, rollback, triggers."""

import json
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import noise_model
import numpy as np
import pytest

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.slot_state import mask_words
from dsinfer_jax.engine.structured_output import GrammarError, StructuredOutput

pytest.importorskip("llguidance", reason="the grammar extra is not installed")

from dsinfer_jax.engine.constraints import fill_rows
from dsinfer_jax.engine.grammar import (
    Matcher,
    Vocabulary,
    native_matcher,
    regex_grammar,
)
from dsinfer_jax.engine.grammar_text import json_grammar
from dsinfer_jax.engine.tool_grammar import tool_grammar

VOCAB, MARKER, THINK_END, ASSISTANT = 512, 9, 4, 7
ENDS = (1, 2)


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    config, _, tokenizer = noise_model.load()
    return TextCodec(tokenizer, config.bos_token_id)


@pytest.fixture(scope="module")
def words(codec: TextCodec) -> Vocabulary:
    """A small vocabulary with two tokens that end an output."""
    tokens = [codec.token_bytes(token) for token in range(VOCAB - 1)]
    return Vocabulary([*tokens, b""], sorted(codec.control_tokens.values()), ENDS)


def matcher(words: Vocabulary, grammar: str, trigger: Sequence[int] = ()) -> Matcher:
    return Matcher(native_matcher(words, grammar), trigger, words.ends)


def allowed(one: Matcher) -> set[int]:
    mask = np.zeros(mask_words(VOCAB), np.int32)
    one.fill(mask)
    return members(mask)


def members(mask: np.ndarray) -> set[int]:
    """The tokens of a packed set."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB]
    return set(np.flatnonzero(bits).tolist())


def takes(words: Vocabulary, grammar: str, *parts: str | int) -> bool:
    """Whether a whole output is right; every token must be in the mask before it is taken."""
    one = matcher(words, grammar)
    for part in parts:
        for token in [part] if isinstance(part, int) else words(part):
            if token not in allowed(one):
                assert not one.accept(token)
                return False
            assert one.accept(token)
    assert one.may_stop == (set(ENDS) <= allowed(one))
    return one.may_stop


def text_schema(**rules: Any) -> str:
    properties = {"t": {"type": "string", **rules}}
    return json_grammar(json.dumps({"type": "object", "properties": properties, "required": ["t"]}))


def test_raw_control_characters_are_refused(words: Vocabulary) -> None:
    """S01: tab, line break, NUL; their escapes are allowed."""
    for character in "\t\n\0\x1f":
        assert not takes(words, text_schema(), '{"t": "a' + character + '"}')
        assert takes(words, text_schema(), json.dumps({"t": "a" + character}))


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (r"a\"b", True),
        (r"\u00e9abcd", True),
        ("éabcd", True),
        (r"\n\n\n\n\n", True),
        (r"\n\n\n\n\n\n", False),
        ("abcdef", False),
        ("abcde", True),
    ],
)
def test_escapes_count_as_one_character(words: Vocabulary, text: str, right: bool) -> None:
    """S02: a length does not take the escapes away."""
    assert takes(words, text_schema(maxLength=5), f'{{"t":"{text}"}}') is right


PATTERNS = [
    r"^[a\-z]+$", r"abc", r"^\d{3}-\w+$", r"^(a|b)*?c$", r"^[^\x00-\x1f]+$", r"^[\s\S]$",
    r"^a|b$", r"^\u00e9$", r"^a.b$", r"^(?:ab){2,3}$",
]  # fmt: skip
REFUSED = [r"^(?=.*a)b+$", r"^(?<!a)b$", r"^(a)\1$", r"^\bword\b$", "(", "[z-a]"]
CANDIDATES = [
    "a-z", "b", "aab", "xabcx", "abc", "123-ab", "123-é", "ababc", "aac", "q q", "word", "aa",
    "\n", "x", "a", "ab", "aXX", "XXb", "é", "-", "\\", "a\nb", "abab", "ababab", "",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_python_says(words: Vocabulary, pattern: str) -> None:
    """S06: found anywhere in a JSON text; a regular expression alone is the whole output."""
    for text in CANDIDATES:
        found = re.search(pattern, text, re.ASCII) is not None
        assert (
            takes(words, text_schema(pattern=pattern), json.dumps({"t": text}, ensure_ascii=False))
            is found
        ), text
        whole = re.fullmatch(pattern, text) is not None
        assert takes(words, regex_grammar(pattern), text) is whole, text


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: "write this" /[a-z]+/\n', "write this"),
        ("start: %json " + json.dumps({"const": "write this"}) + "\n", '"write this"'),
        (regex_grammar("write this( again)?"), "write this"),
    ],
)
def test_text_that_is_certain_may_be_said_in_the_tokens_of_the_model(
    codec: TextCodec, words: Vocabulary, grammar: str, text: str
) -> None:
    """And in any others: only so can a model go on as it was trained."""
    one = matcher(words, grammar)
    tokens = codec.encode(text)[1:]  # the first begins a sequence
    assert len(tokens) < len(text)
    for place, token in enumerate(tokens):
        spelled = {codec.token_bytes(other) for other in allowed(one)}
        rest = b"".join(map(codec.token_bytes, tokens[place:]))
        starts = {rest[:size] for size in range(1, len(rest) + 1)}
        known = {codec.token_bytes(other) for other in range(VOCAB - 1)}
        assert spelled >= starts & known
        assert one.accept(token)


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_cannot_be_enforced_is_refused(words: Vocabulary, pattern: str) -> None:
    for grammar in (text_schema(pattern=pattern), regex_grammar(pattern)):
        with pytest.raises(GrammarError, match=r"the constraint cannot be enforced: \S"):
            matcher(words, grammar)


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"if": {}, "then": {}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {}},
        {"type": "string", "format": "unheard-of"},
        {"dependentRequired": {"a": ["b"]}},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"$ref": "https://example.com/schema"},
        {"type": "integer", "minimum": 5, "maximum": 4},
    ],
)
def test_schemas_are_never_widened(words: Vocabulary, schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        matcher(words, json_grammar(json.dumps(schema)))


@pytest.mark.parametrize("source", ["{", "5", '"text"', "[]", '{"x-guidance": {"lenient": true}}'])
def test_what_is_no_schema_is_refused_in_a_sentence(source: str) -> None:
    with pytest.raises(GrammarError, match=r"the schema (is|has)"):
        json_grammar(source)


def test_every_end_is_allowed_only_where_the_grammar_may_stop(words: Vocabulary) -> None:
    """S15; and control tokens never inside a text."""
    one = matcher(words, regex_grammar("ab?"))
    assert not allowed(one) & set(ENDS)
    assert one.accept(words("a")[0])
    assert set(ENDS) <= allowed(one)
    assert one.accept(words("b")[0])  # nothing can follow: an end still can
    assert allowed(one) == set(ENDS)
    for end in ENDS:
        assert one.accept(end)
        assert not one.accept(words("b")[0])
        one.rollback(1)
        assert allowed(one) == set(ENDS)
    one.rollback(1)
    assert allowed(one) == {words("b")[0], *ENDS}
    inside = matcher(words, text_schema())
    assert all(inside.accept(token) for token in words('{"t":"'))
    assert not allowed(inside) & {*words.control, VOCAB - 1}


def test_blanks_cannot_go_on_for_ever(words: Vocabulary) -> None:
    assert takes(words, text_schema(), '{  "t" :\n "a" }')
    assert not takes(words, text_schema(), "{" + " " * 21 + '"t":"a"}')


@pytest.mark.parametrize("place", range(5))
def test_the_grammar_starts_right_after_its_trigger(words: Vocabulary, place: int) -> None:
    """S08: the end of thinking at any place of the drafts; a code fence after it is refused."""
    one = matcher(words, text_schema(), (THINK_END,))
    assert not one.constrained
    drafts = [*[words("x")[0]] * place, THINK_END, words("`")[0], words("`")[0]]
    masks = np.zeros((len(drafts) + 1, mask_words(VOCAB)), np.int32)
    assert fill_rows(one, drafts, masks) == place + 1
    open_rows = (masks == -1).all(-1).tolist()
    assert open_rows == [True] * (place + 1) + [False] + [True] * (len(masks) - place - 2)
    after = members(masks[place + 1])
    assert {words.tokens[token][:1] for token in after} == {b"{"}
    assert not one.constrained
    for token in drafts[: place + 1]:
        assert one.accept(token)
    assert one.constrained
    assert allowed(one) == after


def test_a_trigger_may_overlap_itself(words: Vocabulary) -> None:
    """The automaton against the definition, over all short sequences, with rollback."""
    pattern = (5, 6, 5, 5)
    for tokens in product((5, 6), repeat=7):
        one = matcher(words, regex_grammar("a"), pattern)
        for place, token in enumerate(tokens):
            ended = [end for end in range(place + 1) if tokens[:end][-4:] == pattern]
            assert one.constrained == bool(ended)
            if ended:
                break
            assert one.accept(token)
        else:
            one.rollback(3)
            assert one.constrained == (tokens[:4] == pattern)


@pytest.mark.parametrize("good", range(6))
def test_bad_drafts_leave_no_trace(words: Vocabulary, good: int) -> None:
    """S09: the matcher afterwards is that of a fresh replay of what was committed."""
    text = words('{"t":"ab"}')
    for done in range(len(text) - 5):
        one = matcher(words, text_schema())
        assert all(one.accept(token) for token in text[:done])
        drafts = [*text[done : done + good], MARKER, *text[done : done + 5 - good]][:5]
        masks = np.zeros((6, mask_words(VOCAB)), np.int32)
        assert fill_rows(one, drafts, masks) == min(good, 5)
        for place in range(min(good, 5) + 1):
            fresh = matcher(words, text_schema())
            assert all(fresh.accept(token) for token in text[: done + place])
            assert members(masks[place]) == allowed(fresh)
        assert allowed(one) == members(masks[0])


TOOLS = json.dumps(
    [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in {
            "f": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "u": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                    "e": {"enum": ["1", 1]},
                },
                "required": ["city"],
            },
            "g": {"type": "object"},
            "h": {"type": "object", "properties": {"o": {"type": "string", "maxLength": 3}}},
            "none": {"type": "object", "properties": {}, "additionalProperties": False},
        }.items()
    ]
)


def markup(text: str) -> list[str | int]:
    """Text with the marker as its token."""
    first, *rest = text.replace("<", "<\0").replace("/", "/\0").split("D|")
    parts: list[str | int] = [first.replace("\0", "")]
    for part in rest:
        parts += [MARKER, part.replace("\0", "")]
    return parts


def call(name: str, *parameters: tuple[str, str, str]) -> str:
    lines = "".join(
        f'\n<D| parameter name="{key}" string="{kind}">{value}</D| parameter>'
        for key, kind, value in parameters
    )
    return f'<D| invoke name="{name}">{lines or chr(10)}\n</D| invoke>'


CITY = ("city", "true", "Bonn")
CALLS = [
    (call("f", ("city", "true", 'Paris <b>"x"</b>\n')), True),
    (call("f", ("city", "false", "42")), False),
    (call("f", ("city", "false", '"Paris"')), False),
    (call("f"), False),
    (call("f", CITY, ("days", "false", "3")), True),
    (call("f", CITY, ("days", "true", "3")), False),
    (call("f", CITY, ("u", "true", "3")), True),
    (call("f", CITY, ("u", "false", "3")), True),
    (call("f", CITY, ("u", "false", '"3"')), False),
    (call("f", CITY, ("e", "true", "1")), True),
    (call("f", CITY, ("e", "false", "1")), True),
    (call("f", CITY, ("e", "true", "2")), False),
    (call("f", CITY, ("e", "false", '"1"')), False),
    (call("f", CITY, ("other", "true", "1")), False),
    (call("g"), True),
    (call("g", ("z", "true", "q"), ("y", "false", "[1]")), True),
    (call("g", ("z", "false", '"q"')), False),
    (call("g", ("é-z.1", "true", "q")), True),
    (call("g", ("z y", "true", "q")), False),  # the official rules break on such names
    (call("g", ("z\\n", "true", "q")), False),
    (call("g", ("z\t", "true", "q")), False),
    (call("h"), True),
    (call("h", ("o", "true", "abc")), True),
    (call("h", ("o", "true", "abcd")), False),
    (call("none"), True),
    (call("none", CITY), False),
    (call("unknown"), False),
    (call("h") + "\n" + call("g"), True),
    ("", False),
]


@pytest.mark.parametrize(("text", "right"), CALLS)
def test_the_attribute_and_the_value_of_a_parameter_agree(
    words: Vocabulary, text: str, right: bool
) -> None:
    """S04: raw text is marked true, other JSON false, as the schema says."""
    block = markup(text + "\n</D| calls>")
    assert takes(words, tool_grammar(TOOLS, MARKER, after_marker=True), *block) is right
    whole = tool_grammar(TOOLS, MARKER, after_marker=False)
    assert takes(words, whole, " calls>\n", *block) is right


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "x"}}}, "has pattern"),
        ({"properties": {"a": {"type": "string", "format": "uri"}}}, "has format"),
        ({"properties": {"a": {"allOf": [{}]}}}, "has allOf"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "which is not there"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "not in its own schema"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "without end"),
        ({"properties": {"a": {"enum": []}}}, "nothing satisfies"),
        ({"properties": {"a": 5}}, "no schema that can be read"),
        ({"properties": {}, "required": ["a"]}, "is required but not declared"),
    ],
)
def test_tools_that_cannot_be_enforced_are_refused(
    parameters: dict[str, Any], sentence: str
) -> None:
    tools = json.dumps([{"function": {"name": "t", "parameters": parameters}}])
    with pytest.raises(GrammarError, match=f"parameter 'a' of the tool 't' .*{sentence}"):
        tool_grammar(tools, MARKER, after_marker=True)


@pytest.mark.parametrize("tools", ["", "{", "[]", "[{}]", "5"])
def test_lists_of_tools_that_cannot_be_read_are_refused(tools: str) -> None:
    with pytest.raises(GrammarError, match="tools"):
        tool_grammar(tools, MARKER, after_marker=True)


def test_rendered_calls_are_in_the_grammar_of_their_request(words: Vocabulary) -> None:
    """The protocol layer's own markup, of the tools and the constraint of one request."""
    from dsinfer_jax.recipe import (
        ChatCompletionRequest,
        ConversionOptions,
        DeepseekV41Encoding,
        Tokenizer,
    )

    arguments = [
        ("f", {"city": 'Bonn "</b>"', "days": 3, "u": "x", "e": 1}),
        ("f", {"city": "", "u": 5, "e": "1"}),
        ("g", {}),
        ("h", {"o": "abc"}),
    ]
    calls = [
        {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        for n, (name, given) in enumerate(arguments)
    ]
    answers = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in calls]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "Well", "tool_calls": calls},
        *answers,
    ]
    body = {"model": "DeepSeek-V4.1-Flash", "messages": messages, "tools": json.loads(TOOLS)}
    request = ChatCompletionRequest(body).convert(ConversionOptions())
    constraint = request.inference_options.output_constraint
    assert constraint is not None
    output = StructuredOutput.of_constraint(
        constraint.kind, constraint.schema, thinking_end=[THINK_END], marker=MARKER
    )
    assert output.trigger_token_ids == (MARKER,)
    _, _, tokenizer = noise_model.load()
    encoding = DeepseekV41Encoding().with_tokenizer(Tokenizer.from_file(str(tokenizer)))
    ids = list(encoding.encode(request.conversation))
    # the history's only turn of the assistant: its block begins with the first marker in it
    start = ids.index(MARKER, ids.index(ASSISTANT)) + 1
    one = matcher(words, tool_grammar(output.source, MARKER, after_marker=False))
    taken = 0
    while not one.may_stop:
        assert one.accept(ids[start + taken]), words.native.dbg_tokens(ids[start:][: taken + 9])
        taken += 1
    assert ids[start:].count(MARKER) - ids[start + taken :].count(MARKER) > 2 * len(calls)
