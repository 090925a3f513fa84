"""Constrained requests inside the engine: waiting for their grammars, and the masks of a step."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.slot_state import mask_words
from dsinfer_jax.engine.structured_output import GrammarError

if TYPE_CHECKING:  # it needs the grammar extra
    from dsinfer_jax.engine.grammar import Matcher
    from dsinfer_jax.engine.grammar_compiler import Compilation, GrammarCompiler


class PendingGrammars:
    """Requests whose grammars are being made ready, off the step loop.

    Args:
        make: gives the compiler when the first is needed; None: there is no tokenizer.
    """

    def __init__(self, make: Callable[[], "GrammarCompiler"] | None) -> None:
        self._make = make
        self._compiler: GrammarCompiler | None = None
        self._waiting: dict[Request, Compilation] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: Request) -> None:
        """Start. Raises GrammarError if the engine can enforce nothing."""
        output = request.params.structured_output
        assert output is not None
        if self._make is None:
            raise GrammarError("structured_output needs a tokenizer, which the model lacks")
        if self._compiler is None:
            self._compiler = self._make()
        self._waiting[request] = self._compiler.submit(output)

    def drop(self, request: Request) -> None:
        """Forget a request if it waits here; work on its grammar stops."""
        compilation = self._waiting.pop(request, None)
        if compilation is not None:
            compilation.cancel()

    def expired(self, now: float) -> list[Request]:
        """Drop the requests whose deadline is before `now`, and name them."""
        late = [one for one in self._waiting if one.deadline is not None and one.deadline < now]
        for request in late:
            self.drop(request)
        return late

    def finished(self, wait: bool = False) -> list[tuple[Request, str | None]]:
        """Requests that wait no longer: they have a matcher, or a sentence says why not.

        Args:
            wait: until that is so of all of them.
        """
        done = [request for request, work in self._waiting.items() if wait or work.done]
        return [(request, self._take(request)) for request in done]

    def _take(self, request: Request) -> str | None:
        try:
            request.matcher = self._waiting.pop(request).result()
        except GrammarError as error:
            return str(error)
        return None

    def close(self) -> None:
        """End the compiler's process; the next request starts another."""
        compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.close()


def row_masks(
    places: Iterable[tuple[int, Request]], count: int, rows_each: int, vocab_size: int
) -> np.ndarray | None:
    """Packed masks of a step's rows, [count x rows_each, mask words] int32; None: all is allowed.

    A request whose grammar cannot go on keeps open rows and a sentence in `grammar_error`.

    Args:
        places: requests and their places among `count`.
        rows_each: rows of a place: the token to draw, and those after drafts.
    """
    masks = None
    for place, request in places:
        matcher = request.matcher
        drafts = request.drafts if rows_each > 1 else []
        if matcher is None or not (matcher.constrained or drafts):
            continue
        if masks is None:
            masks = np.full((count, rows_each, mask_words(vocab_size)), -1, np.int32)
        try:
            fill_rows(matcher, drafts, masks[place])
        except GrammarError as error:
            request.grammar_error = str(error)
            masks[place] = -1
    return None if masks is None else masks.reshape(-1, masks.shape[-1])


def fill_rows(matcher: "Matcher", drafts: Sequence[int], masks: np.ndarray) -> int:
    """Masks of a request's verify rows: row j is after the drafts before it (speculative.md 8.1).

    A draft that is refused has probability 0 in its row; rows after it stay open, because they
    cannot be reached. The matcher is left as it was.

    Args:
        masks: [drafts + 1 or more, mask words] int32, written.

    Returns:
        How many drafts the grammar takes.

    Raises:
        GrammarError: the grammar cannot go on from where it is.
    """
    masks[:] = -1
    matcher.fill(masks[0])
    taken = 0
    for draft, row in zip(drafts, masks[1:]):
        if not matcher.accept(draft):
            break
        taken += 1
        try:
            matcher.fill(row)
        except GrammarError:  # it will say so if the output gets here
            row[:] = -1
            break
    matcher.rollback(taken)
    return taken


def accept_token(request: Request, token: int) -> str | None:
    """Move the request's grammar on; a sentence if it cannot take the token."""
    if request.matcher is None:
        return None
    if request.grammar_error is None and not request.matcher.accept(token):
        request.grammar_error = f"the grammar refuses token {token}, which was drawn; report it"
    return request.grammar_error
