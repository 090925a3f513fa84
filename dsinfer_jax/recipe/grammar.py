"""The markup of model output as data: the stages and the markers they look for (recipe.md 5.1).

Matching is in `automaton.py` and `parser.py`; what an effect does is in `stream.py` and, for tool
arguments, in `tool_arguments.py`. Knows nothing about dialects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from dsinfer_jax.recipe.actions import Action, Effect
from dsinfer_jax.recipe.automaton import Branch, Markers, make_branch


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One state of the parser.

    `other` is the action for text that no marker claims.
    `wake` finds the next character that can begin a marker, at a place where nothing is partially
    matched; a piece in which it finds nothing is plain text. A line break wakes only markers that
    it can be part of, so it is left out when an ordinary character follows. When all markers begin
    with the same `letter`, a piece without it and without the `tail` at its end is plain, too.
    """

    name: str
    other: Action
    markers: Markers
    wake: re.Pattern[str]
    letter: str | None
    tail: str


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """What decides the tables; hashable, so that equal streams share them."""

    parse_tool_calls: bool
    parse_json_output: bool
    stop_sequences: tuple[str, ...]
    thinking_end: str
    dsml: str
    strict: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """The stages by name, in the spelling for text pieces and in the spelling for id pieces.

    Both have the same names, branches and pattern lengths, so a partial match carries over when a
    stream mixes both kinds of piece. In the id spelling the letters of a control token are private
    code points that no decoded text can hold: only `encode_control` produces them.
    """

    by_text: dict[str, Stage]
    by_id: dict[str, Stage]
    control_letters: dict[int, str]
    _encoded: dict[str, str] = field(default_factory=dict)  # at most the added vocabulary

    def encode_control(self, spelling: str) -> str:
        """The private letters of a control token's spelling, one for each character."""
        encoded = self._encoded.get(spelling)
        if encoded is None:
            letters = self.control_letters
            encoded = "".join(letters.get(ord(letter), _OTHER_LETTER) for letter in spelling)
            self._encoded[spelling] = encoded
        return encoded


# Lone surrogates: never part of decoded text.
_FIRST_PRIVATE = 0xD800
_OTHER_LETTER = "\udfff"


# Both spellings of the tables share these: actions are compared by identity.
_CONTENT = Action(Effect.CONTENT)
_REASONING = Action(Effect.REASONING)
_BLANK = Action(Effect.BLANK, place="text_around_json")
_MARKUP = Action(Effect.IGNORE)
_LEADING_NEWLINE = Action(Effect.IGNORE, place="leading_newline")
_STRAY_THINKING_END = Action(Effect.IGNORE, place="think_end_in_content")
_JSON_OBJECT = Action(Effect.CONTENT_LABEL, "{")
_JSON_LIST = Action(Effect.CONTENT_LABEL, "[")
_BETWEEN_CALLS = Action(Effect.IGNORE, place="between_calls")
_AFTER_CALLS = Action(Effect.IGNORE, place="after_calls")
_CALL_BEGINS = Action(Effect.CALL_BEGINS)
_NAME_TEXT = Action(Effect.NAME_TEXT)
_NAME_ENDS = Action(Effect.NAME_ENDS)
_BETWEEN_PARAMETERS = Action(Effect.IGNORE, place="between_parameters")
_PARAMETER_BEGINS = Action(Effect.PARAMETER_BEGINS)
_PARAMETER_NAME = Action(Effect.PARAMETER_NAME)
_PARAMETER_NAME_ENDS = Action(Effect.PARAMETER_NAME_ENDS)
_PARAMETER_KIND = Action(Effect.IGNORE, place="parameter_kind")
_PARAMETER_LOST = Action(Effect.PARAMETER_LOST)
_STRING_BEGINS = Action(Effect.STRING_BEGINS)
_STRING_TEXT = Action(Effect.STRING_TEXT)
_STRING_ENDS = Action(Effect.STRING_ENDS)
_JSON_BEGINS = Action(Effect.JSON_BEGINS)
_JSON_TEXT = Action(Effect.JSON_TEXT)
_JSON_ENDS = Action(Effect.JSON_ENDS)
_ARGUMENTS_END = Action(Effect.ARGUMENTS_END)


# Longer stop sequences are a caller's choice and make large tables: those are not kept.
_LONGEST_KEPT_STOPS = 512


def build_grammar(options: GrammarOptions) -> Grammar:
    """The tables for both kinds of pieces (recipe.md 5.1, 5.3); equal options share them."""
    if sum(map(len, options.stop_sequences)) > _LONGEST_KEPT_STOPS:
        return _build_grammar(options)
    return _kept_grammar(options)


@lru_cache(maxsize=64)
def _kept_grammar(options: GrammarOptions) -> Grammar:
    return _build_grammar(options)


def _build_grammar(options: GrammarOptions) -> Grammar:
    letters = sorted(set(options.thinking_end + options.dsml))
    private = {ord(letter): chr(_FIRST_PRIVATE + index) for index, letter in enumerate(letters)}
    stops = [Action(Effect.STOP, stop) for stop in options.stop_sequences if stop]
    by_text, by_id = (
        _build_stages(options, stops, thinking_end, dsml)
        for thinking_end, dsml in (
            (options.thinking_end, options.dsml),
            (options.thinking_end.translate(private), options.dsml.translate(private)),
        )
    )
    return Grammar(by_text, by_id, private)


def _stage(name: str, other: Action, branches: Iterable[Branch]) -> Stage:
    branches = tuple(branches)
    matched = [branch for branch in branches if not branch.leading]
    first = sorted({branch.pattern[:1] for branch in matched})
    newlines = any(branch.newlines for branch in matched) and "\n" not in first
    if "" in first:
        wake = ""  # an empty marker can match anywhere
    else:
        letters = re.escape("".join(first))
        # (?!) never matches: a stage without markers has only plain text.
        wake = f"[{letters}]" if letters else "(?!)"
        if newlines:
            wake = rf"{wake}|\n(?=[\n{letters}]|\Z)"
    return Stage(
        name,
        other,
        Markers(branches),
        re.compile(wake),
        letter=first[0] if len(first) == 1 and first[0] else None,
        tail="\n" if newlines else "",
    )


def _build_stages(
    options: GrammarOptions, stops: list[Action], thinking_end: str, dsml: str
) -> dict[str, Stage]:
    stages = [
        *_text_stages(options, stops, thinking_end, dsml),
        *_call_stages(dsml),
        *_argument_stages(dsml, options.strict),
    ]
    return {stage.name: stage for stage in stages}


def _text_stages(
    options: GrammarOptions, stops: list[Action], thinking_end: str, dsml: str
) -> list[Stage]:
    opening = []
    if options.parse_tool_calls:
        opening = [make_branch("<" + dsml, _MARKUP, "calls", newlines=True)]
    stopping = [make_branch(action.text, action, "finished") for action in stops]
    head, other = stopping, _CONTENT
    if options.parse_json_output:
        other = _BLANK
        head = [
            make_branch("```json\n", _MARKUP, "json"),
            make_branch("```\n", _MARKUP, "json"),
            make_branch("{", _JSON_OBJECT, "json"),
            make_branch("[", _JSON_LIST, "json"),
        ]

    def answer(name: str, lead: list[Branch]) -> Stage:
        ending = make_branch(thinking_end, _STRAY_THINKING_END, "content")
        return _stage(name, other, [*head, *opening, *lead, ending])

    def thinking(name: str, lead: list[Branch]) -> Stage:
        ending = make_branch(thinking_end, _MARKUP, "content_first", newlines=True)
        return _stage(name, _REASONING, [*opening, *lead, ending])

    def leading(name: str) -> list[Branch]:
        return [make_branch("\n", _LEADING_NEWLINE, name, leading=True)]

    return [
        answer("content", []),
        answer("content_first", leading("content_first")),
        thinking("reasoning", []),
        thinking("reasoning_first", leading("reasoning_first")),
        _stage("json", _CONTENT, [*stopping, make_branch("\n```", _MARKUP, "after_json")]),
        _stage("after_json", _BLANK, opening),
    ]


def _call_stages(dsml: str) -> list[Stage]:
    calls = [
        make_branch('invoke name="', _CALL_BEGINS, "name"),
        make_branch(f"</{dsml}tool_calls>", _MARKUP, "finished"),
        make_branch(f"</{dsml} calls>", _MARKUP, "finished"),
    ]
    return [
        _stage("calls", _BETWEEN_CALLS, calls),
        _stage("name", _NAME_TEXT, [make_branch('"', _NAME_ENDS, "first_argument")]),
        _stage("finished", _AFTER_CALLS, []),
    ]


def _argument_stages(dsml: str, strict: bool) -> list[Stage]:
    close = "</" + dsml

    def arguments(name: str) -> Stage:
        parameter = make_branch("parameter name=", _PARAMETER_BEGINS, "parameter_name")
        return _stage(
            name, _BETWEEN_PARAMETERS, [parameter, make_branch(close, _ARGUMENTS_END, "calls")]
        )

    # The official name ends at the first blank; the strict one at the attribute that follows it.
    name_markers = ['" string="', ' string="'] if strict else [" "]
    name_ends = [
        make_branch(marker, _PARAMETER_NAME_ENDS, "parameter_kind") for marker in name_markers
    ]
    lost = [make_branch(close, _PARAMETER_LOST, "next_argument")] if strict else []
    kinds = [
        make_branch('true">', _STRING_BEGINS, "string_value"),
        make_branch('false">', _JSON_BEGINS, "json_value"),
    ]
    return [
        arguments("first_argument"),
        arguments("next_argument"),
        _stage("parameter_name", _PARAMETER_NAME, [*name_ends, *lost]),
        _stage("parameter_kind", _PARAMETER_KIND, [*kinds, *lost]),
        _stage("string_value", _STRING_TEXT, [make_branch(close, _STRING_ENDS, "next_argument")]),
        _stage("json_value", _JSON_TEXT, [make_branch(close, _JSON_ENDS, "next_argument")]),
    ]
