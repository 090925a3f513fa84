"""The marker automata of one parser stage, run together (recipe.md 5.1).

Each branch has a prefix automaton: its state is the length of the longest prefix of the marker that
the text read so far ends with, plus, for markers that take line breaks with them, the run of line
breaks before it. A `MarkerState` is the state of all branches at once; states are linked as they
are first reached, so that reading a character is one look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsinfer_jax.recipe.actions import Action

# States with a longer run of line breaks are not remembered: their number has no bound.
_LONGEST_REMEMBERED_RUN = 16


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A marker, the action it stands for and the name of the stage that follows it.

    `newlines`: line breaks directly before the marker belong to it. `leading`: the marker counts
    only as the first character of its stage.
    """

    pattern: str
    action: Action
    next: str
    newlines: bool
    leading: bool
    failure: tuple[int, ...]


def make_branch(
    pattern: str, action: Action, following: str, *, newlines: bool = False, leading: bool = False
) -> Branch:
    """A branch with the failure table of its pattern."""
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


class Completion:
    """A marker was read to its end; `length` counts the line breaks that belong to it."""

    __slots__ = ("branch", "length")

    def __init__(self, branch: Branch, length: int) -> None:
        self.branch = branch
        self.length = length


class Markers:
    """The branches of a stage in order, and the states they have been in.

    `entry` is the state on entry, `calm` the one without any match after that.
    """

    __slots__ = ("_known", "branches", "calm", "entry", "letters")

    def __init__(self, branches: tuple[Branch, ...]) -> None:
        self.branches = branches
        self.letters = frozenset("".join(branch.pattern for branch in branches) + "\n")
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], MarkerState] = {}
        zeros = (0,) * len(branches)
        self.calm = self.state(zeros, zeros)
        has_leading = any(branch.leading for branch in branches)
        self.entry = MarkerState(self, zeros, zeros, True) if has_leading else self.calm

    def state(self, matched: tuple[int, ...], runs: tuple[int, ...]) -> MarkerState:
        """The one state with these matches and runs, none of them at the entry any more."""
        key = matched, runs
        state = self._known.get(key)
        if state is None:
            state = MarkerState(self, matched, runs, False)
            if state.is_kept:
                self._known[key] = state
        return state


class MarkerState:
    """What every branch of a stage has matched so far.

    `waiting` is the length of the longest partial match: so much text may still turn out to be
    part of a marker. `is_calm`: nothing is matched, and no leading character is expected. `next`
    holds the known following states by character. `is_kept` says that the state lives as long as
    its markers; then `steps` is for what the parser knows of whole pieces.
    """

    __slots__ = (
        "_default",
        "_first",
        "_markers",
        "_matched",
        "_runs",
        "branch",
        "is_calm",
        "is_kept",
        "next",
        "steps",
        "waiting",
    )

    def __init__(
        self, markers: Markers, matched: tuple[int, ...], runs: tuple[int, ...], first: bool
    ) -> None:
        self._markers = markers
        self._matched = matched
        self._runs = runs
        self._first = first
        self._default: MarkerState | Completion | None = None
        self.branch = None  # what tells a state from a completion
        self.waiting = max(map(sum, zip(matched, runs)), default=0)
        self.is_calm = not first and not self.waiting
        self.is_kept = max(runs, default=0) <= _LONGEST_REMEMBERED_RUN
        self.next: dict[str, MarkerState | Completion] = {}
        self.steps: dict[str, Any] = {}

    def among(self, markers: Markers) -> MarkerState:
        """The same state for the same markers in another spelling."""
        if self._first:
            return markers.entry
        return markers.state(self._matched, self._runs)

    def advance(self, character: str) -> MarkerState | Completion:
        """Read a character that `next` does not hold yet."""
        if character in self._markers.letters:
            following = self._read(character)
            if self.is_kept:
                self.next[character] = following
            return following
        if self._default is None:  # all characters that no marker holds are alike
            self._default = self._read(character)
        return self._default

    def _read(self, character: str) -> MarkerState | Completion:
        matched, runs = [], []
        for index, branch in enumerate(self._markers.branches):
            length = run = 0
            if not branch.leading:
                length, run = self._read_branch(index, branch, character)
                if length == len(branch.pattern):
                    return Completion(branch, length + run)
            elif self._first and character == branch.pattern:
                return Completion(branch, 1)
            matched.append(length)
            runs.append(run)
        return self._markers.state(tuple(matched), tuple(runs))

    def _read_branch(self, index: int, branch: Branch, character: str) -> tuple[int, int]:
        """The new match length and run of line breaks of one branch."""
        before = length = self._matched[index]
        run = self._runs[index]
        pattern = branch.pattern
        if branch.newlines and not length and character == "\n":
            return 0, run + 1
        while length and pattern[length] != character:
            length = branch.failure[length - 1]
        if pattern and pattern[length] == character:
            length += 1
        if not branch.newlines or length <= before:
            run = 0
        return length, run
