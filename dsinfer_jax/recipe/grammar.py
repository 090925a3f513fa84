"""The markup of model output as data: stages, the markers they look for, what each portion means.

Pure tables (recipe.md 5.1). Matching is in `parser.py`, the meaning of an `Effect` in `stream.py`
and, for tool arguments, in `tool_arguments.py`. Knows nothing about dialects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache


class Effect(Enum):
    """What becomes of a portion of the output."""

    CONTENT = auto()
    REASONING = auto()
    BLANK = auto()  # text around JSON output: one blank stands for it
    CONTENT_LABEL = auto()  # the marker itself is content
    STOP = auto()
    IGNORE = auto()  # recognised markup, or text that is dropped (then the action has a place)
    CALL_BEGINS = auto()
    NAME_TEXT = auto()
    NAME_ENDS = auto()
    PARAMETER_BEGINS = auto()
    PARAMETER_NAME = auto()
    PARAMETER_NAME_ENDS = auto()
    STRING_BEGINS = auto()
    STRING_TEXT = auto()
    STRING_ENDS = auto()
    JSON_BEGINS = auto()
    JSON_TEXT = auto()
    JSON_ENDS = auto()
    PARAMETER_LOST = auto()  # strict only: a parameter closed before it had a value
    ARGUMENTS_END = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """An effect with its text (labels, stop sequences) and the place at which dropped text counts.

    Actions compare by identity: two markers in a row are two actions even when they look alike.
    """

    effect: Effect
    text: str = ""
    place: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A marker, the action it stands for and the stage that follows it.

    `newlines`: line breaks directly before the marker belong to it. `leading`: the marker counts
    only as the first character of its stage.
    """

    pattern: str
    action: Action
    next: str
    newlines: bool
    leading: bool
    failure: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One state of the parser.

    `wake` finds the next character that can begin a marker, at a place where nothing is partially
    matched; a piece in which it finds nothing is plain text. A line break wakes only markers that
    it can be part of, so it is left out when an ordinary character follows.
    """

    name: str
    branches: tuple[Branch, ...]
    other: Action
    wake: re.Pattern[str]
    has_leading: bool


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

    def encode_control(self, spelling: str) -> str:
        """The private letters of a control token's spelling, one for each character."""
        return "".join(self.control_letters.get(ord(letter), _OTHER_LETTER) for letter in spelling)


# Lone surrogates: never part of decoded text.
_FIRST_PRIVATE = 0xD800
_OTHER_LETTER = "\udfff"


@lru_cache(maxsize=256)
def build_grammar(options: GrammarOptions) -> Grammar:
    """Build the tables for both kinds of pieces (recipe.md 5.1, 5.3)."""
    letters = sorted(set(options.thinking_end + options.dsml))
    private = {ord(letter): chr(_FIRST_PRIVATE + index) for index, letter in enumerate(letters)}
    return Grammar(
        by_text=_build_stages(options, options.thinking_end, options.dsml),
        by_id=_build_stages(
            options, options.thinking_end.translate(private), options.dsml.translate(private)
        ),
        control_letters=private,
    )


def _branch(
    pattern: str, action: Action, following: str, *, newlines: bool = False, leading: bool = False
) -> Branch:
    return Branch(pattern, action, following, newlines, leading, _failure_table(pattern))


def _failure_table(pattern: str) -> tuple[int, ...]:
    """For each prefix of the pattern, the length of its longest proper prefix that is a suffix."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return tuple(table)


def _stage(name: str, other: Action, branches: Iterable[Branch]) -> Stage:
    branches = tuple(branches)
    matched = [branch for branch in branches if not branch.leading]
    first = "".join(sorted({branch.pattern[:1] for branch in matched}))
    if any(not branch.pattern for branch in matched):
        wake = re.compile("", re.DOTALL)  # an empty marker can match anywhere
    else:
        # (?!) never matches: a stage without markers has only plain text.
        markers = f"[{re.escape(first)}]" if first else "(?!)"
        if any(branch.newlines for branch in matched) and "\n" not in first:
            markers = rf"{markers}|\n(?=[\n{re.escape(first)}]|\Z)"
        wake = re.compile(markers)
    return Stage(name, branches, other, wake, any(branch.leading for branch in branches))


def _build_stages(options: GrammarOptions, thinking_end: str, dsml: str) -> dict[str, Stage]:
    stages = [
        *_text_stages(options, thinking_end, dsml),
        *_call_stages(dsml),
        *_argument_stages(dsml, options.strict),
    ]
    return {stage.name: stage for stage in stages}


def _text_stages(options: GrammarOptions, thinking_end: str, dsml: str) -> list[Stage]:
    content = Action(Effect.CONTENT)
    reasoning = Action(Effect.REASONING)
    blank = Action(Effect.BLANK, place="text_around_json")
    markup = Action(Effect.IGNORE)
    newline = Action(Effect.IGNORE, place="leading_newline")
    stray_end = Action(Effect.IGNORE, place="think_end_in_content")

    opening = (
        [_branch("<" + dsml, markup, "calls", newlines=True)] if options.parse_tool_calls else []
    )
    stops = [
        _branch(stop, Action(Effect.STOP, stop), "finished")
        for stop in options.stop_sequences
        if stop
    ]
    if options.parse_json_output:
        head = [
            _branch("```json\n", markup, "json"),
            _branch("```\n", markup, "json"),
            _branch("{", Action(Effect.CONTENT_LABEL, "{"), "json"),
            _branch("[", Action(Effect.CONTENT_LABEL, "["), "json"),
        ]
    else:
        head = stops
    fence_end = _branch("\n```", markup, "after_json")

    def answer(name: str, lead: list[Branch]) -> Stage:
        ending = _branch(thinking_end, stray_end, "content")
        return _stage(
            name, blank if options.parse_json_output else content, [*head, *opening, *lead, ending]
        )

    def thinking(name: str, lead: list[Branch]) -> Stage:
        ending = _branch(thinking_end, markup, "content_first", newlines=True)
        return _stage(name, reasoning, [*opening, *lead, ending])

    return [
        answer("content", []),
        answer("content_first", [_branch("\n", newline, "content_first", leading=True)]),
        thinking("reasoning", []),
        thinking("reasoning_first", [_branch("\n", newline, "reasoning_first", leading=True)]),
        _stage("json", content, [*stops, fence_end]),
        _stage("after_json", blank, opening),
    ]


def _call_stages(dsml: str) -> list[Stage]:
    markup = Action(Effect.IGNORE)
    return [
        _stage(
            "calls",
            Action(Effect.IGNORE, place="between_calls"),
            [
                _branch('invoke name="', Action(Effect.CALL_BEGINS), "name"),
                _branch(f"</{dsml}tool_calls>", markup, "finished"),
                _branch(f"</{dsml} calls>", markup, "finished"),
            ],
        ),
        _stage(
            "name",
            Action(Effect.NAME_TEXT),
            [_branch('"', Action(Effect.NAME_ENDS), "first_argument")],
        ),
        _stage("finished", Action(Effect.IGNORE, place="after_calls"), []),
    ]


def _argument_stages(dsml: str, strict: bool) -> list[Stage]:
    between = Action(Effect.IGNORE, place="between_parameters")
    close = "</" + dsml

    def arguments(name: str) -> Stage:
        return _stage(
            name,
            between,
            [
                _branch("parameter name=", Action(Effect.PARAMETER_BEGINS), "parameter_name"),
                _branch(close, Action(Effect.ARGUMENTS_END), "calls"),
            ],
        )

    # The official name ends at the first blank; the strict one at the attribute that follows it.
    name_ends = Action(Effect.PARAMETER_NAME_ENDS)
    lost = [_branch(close, Action(Effect.PARAMETER_LOST), "next_argument")] if strict else []
    name_markers = ['" string="', ' string="'] if strict else [" "]
    return [
        arguments("first_argument"),
        arguments("next_argument"),
        _stage(
            "parameter_name",
            Action(Effect.PARAMETER_NAME),
            [*(_branch(marker, name_ends, "parameter_kind") for marker in name_markers), *lost],
        ),
        _stage(
            "parameter_kind",
            Action(Effect.IGNORE, place="parameter_kind"),
            [
                _branch('true">', Action(Effect.STRING_BEGINS), "string_value"),
                _branch('false">', Action(Effect.JSON_BEGINS), "json_value"),
                *lost,
            ],
        ),
        _stage(
            "string_value",
            Action(Effect.STRING_TEXT),
            [_branch(close, Action(Effect.STRING_ENDS), "next_argument")],
        ),
        _stage(
            "json_value",
            Action(Effect.JSON_TEXT),
            [_branch(close, Action(Effect.JSON_ENDS), "next_argument")],
        ),
    ]
