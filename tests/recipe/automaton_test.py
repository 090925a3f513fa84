"""The linked marker states against the definition they come from, read literally."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from dsinfer_jax.recipe.automaton import Completion, MarkerState
from dsinfer_jax.recipe.grammar import Grammar, GrammarOptions, build_grammar
from dsinfer_jax.recipe.parser import Parser

OPTIONS = [
    GrammarOptions(True, False, ("aab", "ab\n"), "</t>", "D"),
    GrammarOptions(True, False, ("", "<D", "\n"), "<</t>", "<D"),
    GrammarOptions(False, True, ("{",), "\n\n", "`"),
    GrammarOptions(True, True, (), "</t>", "\n"),
    GrammarOptions(True, False, ("a" * 600,), "</t>", "D"),
    GrammarOptions(True, False, (), "</t>", "D", strict=True),
]
LETTERS = '<</tD>\n\n``{}[ab" =;x'
WORDS = [
    "</t>", "<D", "</D", 'invoke name="', '"', "parameter name=", " ", 'true">', 'false">',
    " calls>", "tool_calls>", "```json\n", "\n```", "aab", "ab\n", '" string="', "\n",
]  # fmt: skip


@dataclass
class Literal:
    """Recipe.md 5.1 word by word: what was read is compared with every marker after each letter."""

    stages: dict
    stage: object
    read: str = ""  # since the stage was entered
    pending: int = 0

    def feed(self, text: str) -> list[tuple[object, int]]:
        portions = []
        for letter in text:
            self.read += letter
            self.pending += 1
            for branch in self.stage.markers.branches:
                length, complete = self.match(branch)
                if complete:
                    portions += [(self.stage.other, self.pending - length), (branch.action, length)]
                    self.stage, self.read, self.pending = self.stages[branch.next], "", 0
                    break
        lengths = [self.match(branch)[0] for branch in self.stage.markers.branches]
        waiting = max(lengths, default=0) if self.read else 0
        portions.append((self.stage.other, self.pending - waiting))
        self.pending = waiting
        return [portion for portion in portions if portion[1]]

    def match(self, branch: object) -> tuple[int, bool]:
        """Length of the match that the text ends with, and whether it is complete."""
        if branch.leading:
            return (1, True) if self.read == branch.pattern else (0, False)
        matched = run = 0
        for letter in self.read:
            before = matched
            if branch.newlines and not matched and letter == "\n":
                run += 1
                continue
            text = branch.pattern[:matched] + letter
            matched = next(
                length
                for length in range(len(text), -1, -1)
                if branch.pattern.startswith(text[len(text) - length :])
            )
            if not branch.newlines or matched <= before:
                run = 0
        return matched + run, matched == len(branch.pattern)


def merged(portions: list[tuple[object, int]]) -> list[tuple[object, int]]:
    """Neighbours with one action joined: cutting them differently means the same."""
    result: list[tuple[object, int]] = []
    for action, length in portions:
        if result and result[-1][0] is action:
            result[-1] = (action, result[-1][1] + length)
        else:
            result.append((action, length))
    return result


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_the_parser_follows_the_definition(options: GrammarOptions) -> None:
    grammar = build_grammar(options)
    for seed in range(120):
        rng = random.Random(seed)
        words = [rng.choice([*WORDS, *LETTERS]) for _ in range(rng.randint(0, 25))]
        stage = rng.choice(list(grammar.by_text))
        literal = Literal(grammar.by_text, grammar.by_text[stage])
        parser = Parser(grammar, stage)
        for piece in words:
            assert merged(parser.feed(piece)) == merged(literal.feed(piece)), (stage, words)
        assert parser.finish() == ([(literal.stage.other, literal.pending)] * bool(literal.pending))


def test_equal_options_share_their_tables_and_long_stops_are_not_kept() -> None:
    assert build_grammar(OPTIONS[0]) is build_grammar(OPTIONS[0])
    assert build_grammar(OPTIONS[4]) is not build_grammar(OPTIONS[4])


@pytest.mark.parametrize(
    "piece", ["\n", "\n" * 7, "<", "</think", "<\n", "\n<", "</think>", "<bound"]
)
def test_states_are_bounded_whatever_is_read(piece: str) -> None:
    grammar = build_grammar(GrammarOptions(True, False, ("x" + piece,), "</think>", "bound"))
    parser = Parser(grammar, "reasoning")
    for _ in range(3000):
        parser.feed(piece)
    assert len(reachable(grammar)) < 300


def test_steps_are_bounded_whatever_is_read() -> None:
    grammar = build_grammar(GrammarOptions(True, False, ("stop",), "</think>", "bound"))
    parser = Parser(grammar, "reasoning")
    for number in range(3000):
        parser.feed(f"<{number}")
        parser.feed(f"<{number}" * 10)
    steps = [state.steps for state in reachable(grammar) if isinstance(state, MarkerState)]
    assert 0 < max(map(len, steps)) <= 64
    assert max(len(piece) for known in steps for piece in known) <= 16


def reachable(grammar: Grammar) -> list[MarkerState | Completion]:
    """Everything that the tables of text pieces hold on to."""
    seen: dict[int, MarkerState | Completion] = {}
    todo = [stage.markers.entry for stage in grammar.by_text.values()]
    while todo:
        state = todo.pop()
        if id(state) not in seen:
            seen[id(state)] = state
            todo += getattr(state, "next", {}).values()
            todo += [following for _, _, following in getattr(state, "steps", {}).values()]
    return list(seen.values())
