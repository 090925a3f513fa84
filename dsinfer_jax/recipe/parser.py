"""The push parser of model output: pieces in, actions over character counts out (recipe.md 5.1).

It keeps one marker automaton per branch of the current stage and never looks back: a character is
read once, and text that may still be part of a marker waits. It does not know what an action does
nor where the text of a piece is kept.
"""

from __future__ import annotations

from dsinfer_jax.recipe.grammar import Action, Branch, Grammar, Stage

Portion = tuple[Action, int]


class Parser:
    """Matches the markers of one stream.

    `feed` and `finish` return portions: an action and the number of characters, counted from the
    oldest unclaimed one, that it claims.
    """

    __slots__ = ("_by_id", "_first", "_grammar", "_matched", "_pending", "_runs", "idle", "stage")
    stage: Stage
    idle: bool  # nothing is partially matched and no leading character is expected

    def __init__(self, grammar: Grammar, stage: str) -> None:
        self._grammar = grammar
        self._by_id = False
        self._pending = 0  # characters read and not yet claimed
        self._enter(grammar.by_text[stage])

    def feed(self, text: str, by_id: bool = False) -> list[Portion]:
        """Read one piece; `by_id` says that its control tokens are in private letters."""
        if by_id is not self._by_id:
            self._by_id = by_id
            stages = self._grammar.by_id if by_id else self._grammar.by_text
            self.stage = stages[self.stage.name]
        portions: list[Portion] = []
        position, end, longest = 0, len(text), 0
        while position < end:
            if self.idle:
                found = self.stage.wake.search(text, position)
                if found is None:
                    self._pending += end - position
                    longest = 0
                    break
                self._pending += found.start() - position
                position = found.start()
            self._pending += 1
            branch, longest = self._step(text[position])
            position += 1
            if branch is not None:
                self._claim(branch, longest, portions)
                longest = 0
        if self._pending > longest:
            portions.append((self.stage.other, self._pending - longest))
            self._pending = longest
        return portions

    def finish(self) -> list[Portion]:
        """End of input: what waited for the rest of a marker is ordinary text."""
        pending, self._pending = self._pending, 0
        return [(self.stage.other, pending)] if pending else []

    def _claim(self, branch: Branch, length: int, portions: list[Portion]) -> None:
        if self._pending > length:
            portions.append((self.stage.other, self._pending - length))
        if length:  # only an empty spelling can match nothing
            portions.append((branch.action, length))
        self._pending = 0
        stages = self._grammar.by_id if self._by_id else self._grammar.by_text
        self._enter(stages[branch.next])

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self._first = True
        self._matched = [0] * len(stage.branches)
        self._runs = [0] * len(stage.branches)
        self.idle = not stage.has_leading

    def _step(self, character: str) -> tuple[Branch | None, int]:
        """Feed one character to every branch.

        Returns the first branch that it completes and the length of the match, or None and the
        longest partial match.
        """
        longest = 0
        for index, branch in enumerate(self.stage.branches):
            if branch.leading:
                if self._first and character == branch.pattern:
                    return branch, 1
                continue
            length = self._advance(index, branch, character)
            if self._matched[index] == len(branch.pattern):
                return branch, length
            if length > longest:
                longest = length
        self._first = False
        self.idle = longest == 0
        return None, longest

    def _advance(self, index: int, branch: Branch, character: str) -> int:
        before = matched = self._matched[index]
        pattern = branch.pattern
        if branch.newlines and not matched and character == "\n":
            self._runs[index] += 1
            return self._runs[index]
        while matched and pattern[matched] != character:
            matched = branch.failure[matched - 1]
        if pattern and pattern[matched] == character:
            matched += 1
        self._matched[index] = matched
        if not branch.newlines:
            return matched
        if matched <= before:
            self._runs[index] = 0
        return self._runs[index] + matched
