"""Grammars over tokens: which tokens may come next, forwards and backwards (engine.md 6.3).

The engine of grammars is llguidance; this module is the only one that calls it, apart from the
worker that tries grammars out. A matcher knows tokens only, and is correct for several rows of a
request: it goes forward over drafts and back.
"""

import json
from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np

from dsinfer_jax.engine.structured_output import GrammarError

NICENESS = 10  # of whatever builds grammars: steps come first
# How much work one mask and one grammar may cost; llguidance's units (docs/structured_output.md).
_LIMITS = llguidance.LLParserLimits(
    step_lexer_fuel=200_000, step_max_items=50_000, max_grammar_size=500_000, verbose_errors=False
)
# Every way of cutting the same text into tokens is allowed. Without it a text that is certain, such
# as a tag, could only be said in tokens that no model learned: those of `Vocabulary.__call__`.
_OPTIONS = '%llguidance {"no_forcing": true}\n'


class Vocabulary:
    """The tokens of a model as bytes.

    Attributes:
        tokens: the bytes of each id; empty ones are never allowed.
        control: ids that no text spells.
        ends: ids that end an output; all are allowed where a grammar may stop, and only there.
    """

    is_tokenizer_wrapper = True  # these four names are what llguidance reads
    bos_token_id = None

    def __init__(
        self, tokens: Sequence[bytes], control: Sequence[int], ends: Sequence[int]
    ) -> None:
        self.tokens = list(tokens)
        self.control, self.ends = list(control), list(ends)
        self.special_token_ids = self.control
        self.eos_token_id = self.ends[0]
        self._byte_ids = {
            token[0]: place
            for place, token in enumerate(self.tokens)
            if len(token) == 1 and place not in set(self.control)
        }
        wrapper: Any = self
        self.native = llguidance.LLTokenizer(wrapper, eos_token=self.ends)

    def __call__(self, text: str | bytes) -> list[int]:
        """Text byte by byte: masks do not depend on how text would be tokenised."""
        data = text.encode() if isinstance(text, str) else text
        return [self._byte_ids[byte] for byte in data if byte in self._byte_ids]


class Matcher:
    """Where one output stands in its grammar.

    Args:
        native: llguidance's matcher in its first state; it becomes this matcher's own.
        trigger: tokens that start the grammar; before them everything is allowed.
    """

    def __init__(self, native: Any, trigger: Sequence[int], ends: Sequence[int]) -> None:
        self._native = native
        self._trigger = tuple(trigger)
        self._fallback = _fallbacks(self._trigger)
        self._ends = frozenset(ends)
        self._progress = bytearray([0])  # tokens of the trigger seen, after each free token
        self._consumed = 0  # tokens that the grammar took
        self._ended = False

    @property
    def constrained(self) -> bool:
        """Whether the grammar has started."""
        return self._progress[-1] == len(self._trigger)

    @property
    def may_stop(self) -> bool:
        """Whether the output so far is whole."""
        return not self.constrained or self._ended or bool(self._native.is_accepting())

    def accept(self, token: int) -> bool:
        """Go forward; False, and no change, if the token is not allowed."""
        if not self.constrained:
            self._progress.append(self._advanced(token))
            return True
        if self._ended:
            return False
        if token in self._ends:  # no step of the grammar: llguidance takes none when it is whole
            self._ended = bool(self._native.is_accepting())
            return self._ended
        taken: int = self._native.try_consume_tokens([token])
        self._consumed += taken
        return taken == 1

    def fill(self, words: np.ndarray) -> None:
        """Write the allowed tokens as a bit set, int32 [mask words]; all of them when free.

        Raises:
            GrammarError: the state needs more work than a step may cost.
        """
        words[:] = -1
        if not self.constrained or self._ended:
            return
        self._native.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        error = self._native.get_error()
        if error or not words.any():
            raise GrammarError(f"the grammar cannot go on: {_first_line(error) or 'no token fits'}")

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens."""
        if count and self._ended:
            self._ended = False
            count -= 1
        taken = min(count, self._consumed)
        if taken:
            if not self._native.rollback(taken):
                raise GrammarError(f"the grammar cannot go back {taken} tokens")
            self._consumed -= taken
        if count > taken:
            del self._progress[len(self._progress) - (count - taken) :]

    def _advanced(self, token: int) -> int:
        seen = self._progress[-1]
        while seen and self._trigger[seen] != token:
            seen = self._fallback[seen]
        return seen + (self._trigger[seen] == token)


def native_matcher(vocabulary: Vocabulary, grammar: str) -> Any:
    """llguidance's matcher of a grammar in its dialect of Lark.

    Raises:
        GrammarError: the grammar is wrong, too large, or asks for what cannot be enforced.
    """
    text = _OPTIONS + grammar
    native = llguidance.LLMatcher(vocabulary.native, text, log_level=0, limits=_LIMITS)
    error = native.get_error() or "; ".join(native.get_grammar_warnings())
    if error:
        raise GrammarError(f"the constraint cannot be enforced: {_first_line(error)}")
    return native


def regex_grammar(pattern: str) -> str:
    """A grammar of the texts that a regular expression matches from end to end."""
    made = json.loads(llguidance.LLMatcher.grammar_from_regex(pattern))
    grammar: str = made["grammars"][0]["lark_grammar"]
    return grammar


def _first_line(error: str) -> str:
    return " ".join(error.split())[:300]


def _fallbacks(pattern: Sequence[int]) -> list[int]:
    """For each length, the longest proper beginning that is also an end (Knuth-Morris-Pratt)."""
    table = [0, 0]
    for place in range(1, len(pattern)):
        size = table[place]
        while size and pattern[size] != pattern[place]:
            size = table[size]
        table.append(size + (pattern[size] == pattern[place]))
    return table
