"""The text of one answer as its tokens come, up to the first stop string."""

from collections.abc import Sequence

from dsinfer_jax.engine.detokenise import Detokeniser, TextCodec
from dsinfer_jax.engine.sampling_params import SamplingParams


class AnswerText:
    """Turns tokens into text and holds back what may become a stop string.

    The stop string that is complete first wins; of several that end at the same character, the
    longest. Text of the first `min_tokens` tokens is no part of a match.

    Attributes:
        text: all that was given out.
        tokens: how many were taken; with a stop, the last one is the one that completed it.
        stop: the stop string that was found; afterwards nothing may be added.
    """

    def __init__(self, codec: TextCodec, params: SamplingParams) -> None:
        self._decoder = Detokeniser(codec)
        self._stops = params.stop_strings
        self._least = params.min_tokens
        self._held = ""
        self.text = ""
        self.tokens = 0
        self.stop: str | None = None

    def add(self, tokens: Sequence[int], last: bool = False) -> str:
        """The new text, of tokens up to a stop; with `last`, also what was held back."""
        assert self.stop is None
        new = ""
        for token in tokens:
            self.tokens += 1
            new += self._until_stop(self._decoder.add([token]), last=False)
            if self.stop is not None:
                break
        else:
            if last:
                new += self._until_stop(self._decoder.add([], last=True), last=True)
        self.text += new
        return new

    def _until_stop(self, text: str, last: bool) -> str:
        if not self._stops or self.tokens <= self._least:
            return text
        pending = self._held + text
        found = [(pending.find(stop) + len(stop), -len(stop), stop) for stop in self._stops
                 if stop in pending]  # fmt: skip
        if found:
            end, _, self.stop = min(found)
            return pending[: end - len(self.stop)]
        keep = 0 if last else self._possible_start(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        return max(
            (
                size
                for stop in self._stops
                for size in range(1, min(len(stop), len(text) + 1))
                if text.endswith(stop[:size])
            ),
            default=0,
        )
