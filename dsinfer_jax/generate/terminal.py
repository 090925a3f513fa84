"""What a chat looks like: thinking, answer and calls as they come, each in a block of its own."""

from collections.abc import Mapping
from typing import Any, Literal

from dsinfer_jax.generate.output import TextStream, harmless

Block = Literal["thinking", "answer", "call"]

_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_THINKING = "thinking: "
_INDENT = "  "


class Terminal:
    """Writes a chat to a stream, character by character as it comes.

    Args:
        stream: where to write.
        styled: thinking is dimmed and names are bold; otherwise each line of thinking has a prefix.
    """

    def __init__(self, stream: TextStream, *, styled: bool) -> None:
        self._stream, self._styled = stream, styled
        self._block: Block | None = None
        self._line_is_empty = True

    def show(self, delta: Mapping[str, Any]) -> None:
        """What is new in an answer: a `delta` of Chat Completions (recipe.md 5.5)."""
        if text := delta.get("reasoning_content"):
            self._begin("thinking")
            self._think(harmless(text))
        if text := delta.get("content"):
            self._begin("answer")
            self._write(harmless(text))
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "name" in function:
                self._open_call(harmless(function["name"]))
            self._write(harmless(function["arguments"]))

    def end(self) -> None:
        """The answer is over, or one of its blocks."""
        if not self._line_is_empty:
            self._write("\n")
        self._block = None

    def note(self, text: str) -> None:
        """Say something that is not of the model."""
        self.end()
        self._write(harmless(text) + "\n")

    def _begin(self, block: Block) -> None:
        if block != self._block:
            self.end()
            self._block = block

    def _open_call(self, name: str) -> None:
        self.end()
        self._begin("call")
        self._write(f"call of {self._style(_BOLD, name)}\n{_INDENT}")

    def _think(self, text: str) -> None:
        if not self._styled:
            first = _THINKING if self._line_is_empty else ""
            inner = text.removesuffix("\n")
            rest = text[len(inner) :]  # its prefix waits for the next line
            text = first + inner.replace("\n", f"\n{_THINKING}") + rest
        self._write(self._style(_DIM, text))

    def _style(self, style: str, text: str) -> str:
        """Each piece by itself, so that nothing stays dimmed wherever the answer is stopped."""
        return f"{style}{text}{_PLAIN}" if self._styled else text

    def _write(self, text: str) -> None:
        if not text:
            return
        self._stream.write(text)
        self._stream.flush()
        visible = text.removesuffix(_PLAIN)
        self._line_is_empty = visible.endswith("\n")
