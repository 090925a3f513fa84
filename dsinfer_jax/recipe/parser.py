"""The push parser of model output: pieces in, actions over character counts out (recipe.md 5.1).

It runs the marker automata of the current stage and never looks back: a character is read once,
and text that may still be part of a marker waits. It does not know what an action does nor where
the text of a piece is kept.
"""

from __future__ import annotations

from dsinfer_jax.recipe.actions import Action
from dsinfer_jax.recipe.automaton import MarkerState
from dsinfer_jax.recipe.grammar import Grammar, Stage

Portion = tuple[Action, int]
# What a piece does in a state: its portions, and the stage and the state after it.
Step = tuple[list[Portion], Stage, MarkerState]

# Markup comes in the same short pieces again and again: their steps are kept with the state.
_LONGEST_KEPT_PIECE = 16
_MOST_KEPT_STEPS = 64


class Parser:
    """Matches the markers of one stream.

    `feed` and `finish` return portions: an action and the number of characters, counted from the
    oldest unclaimed one, that it claims. Not to be changed: equal pieces may share them.
    """

    __slots__ = ("_by_id", "_grammar", "_state", "is_idle", "stage")
    stage: Stage
    is_idle: bool  # nothing waits: a piece in which `stage.wake` finds nothing is plain text

    def __init__(self, grammar: Grammar, stage: str) -> None:
        self._grammar = grammar
        self._by_id = False
        self.stage = grammar.by_text[stage]
        self._state = self.stage.markers.entry
        self.is_idle = self._state.is_calm

    def feed(self, text: str, by_id: bool = False) -> list[Portion]:
        """Read one piece; `by_id` says that its control tokens are in private letters."""
        if by_id is not self._by_id:
            self._change_spelling(by_id)
        state = self._state
        step = state.steps.get(text)
        if step is None:
            step = self._read(text)
            if state.is_kept and len(text) <= _LONGEST_KEPT_PIECE:
                if len(state.steps) >= _MOST_KEPT_STEPS:
                    state.steps.clear()
                state.steps[text] = step
        portions, self.stage, self._state = step
        self.is_idle = self._state.is_calm
        return portions

    def _read(self, text: str) -> Step:
        """What the piece does; the state knows how many characters are read and not yet claimed."""
        stage, state = self.stage, self._state
        position, end = 0, len(text)
        if state.is_calm:
            found = stage.wake.search(text)
            if found is None:
                return [(stage.other, end)] if end else [], stage, state
            position = found.start()
        stages = self._grammar.by_id if self._by_id else self._grammar.by_text
        portions: list[Portion] = []
        # Unclaimed are `before` characters of earlier pieces and those of this one from `start` on.
        before, start = state.waiting, 0
        while position < end:
            character = text[position]
            following = state.next.get(character) or state.advance(character)
            position += 1
            branch = following.branch
            if branch is None:
                state = following  # type: ignore[assignment]
            else:
                length = following.length  # type: ignore[union-attr]
                other = before + position - start - length
                if other > 0:
                    portions.append((stage.other, other))
                if length:  # only an empty spelling can match nothing
                    portions.append((branch.action, length))
                before, start = 0, position
                stage = stages[branch.next]
                state = stage.markers.entry
            if state.is_calm:
                found = stage.wake.search(text, position)
                if found is None:
                    break
                position = found.start()
        plain = before + end - start - state.waiting
        if plain > 0:
            portions.append((stage.other, plain))
        return portions, stage, state

    def finish(self) -> list[Portion]:
        """End of input: what waited for the rest of a marker is ordinary text."""
        waiting = self._state.waiting
        return [(self.stage.other, waiting)] if waiting else []

    def _change_spelling(self, by_id: bool) -> None:
        """Text follows ids or ids follow text: the partial matches carry over."""
        self._by_id = by_id
        stages = self._grammar.by_id if by_id else self._grammar.by_text
        self.stage = stages[self.stage.name]
        self._state = self._state.among(self.stage.markers)
