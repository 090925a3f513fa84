"""An engine without a model: every request gets the tokens of one script."""

import time
from collections.abc import Callable, Sequence
from typing import cast

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import Delta, FinishReason, Request

END = 1
LONGEST = 100_000


class ScriptedEngine:
    """The methods of LLMEngine that its callers use.

    Args:
        script: tokens of every request, in order.
        sizes: tokens of each step; afterwards one.
        before_step: called with the number of the step.
        seconds: how long a step takes.

    Attributes:
        running: requests that have not ended.
        steps: made so far.
    """

    def __init__(
        self,
        script: Sequence[int],
        sizes: Sequence[int] = (),
        before_step: Callable[[int], None] = lambda step: None,
        seconds: float = 0.0,
    ) -> None:
        self.config = self.hosts = None
        self._script, self._sizes = list(script), list(sizes)
        self._before_step, self._seconds = before_step, seconds
        self.running: list[Request] = []
        self.steps = 0

    def llm(self, codec: TextCodec | None = None) -> LLM:
        return LLM.over_engine(cast(LLMEngine, self), codec)

    def add_request(self, request: Request) -> list[Delta]:
        if not request.prompt_token_ids:
            request.fail(FinishReason.ERROR, "the prompt is empty")
            return [Delta(request.index, [], [], FinishReason.ERROR, "the prompt is empty")]
        self.running.append(request)
        return []

    def abort_request(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
            request.fail(FinishReason.ABORT, "aborted")

    def stop_request(self, request: Request, text: str, kept: int) -> None:
        request.stop_at(text, kept)
        if request in self.running:
            self.running.remove(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def flush(self) -> list[Delta]:
        return []

    def snapshot(self) -> dict[str, float]:
        return {"steps": self.steps}

    def step(self) -> list[Delta]:
        self._before_step(self.steps)
        if self._seconds:
            time.sleep(self._seconds)
        self.steps += 1
        size = self._sizes.pop(0) if self._sizes else 1
        return [self._advance(request, size) for request in list(self.running)]

    def _advance(self, request: Request, size: int) -> Delta:
        first = len(request.token_ids)
        for token in self._script[first : first + size]:
            if not request.finished:
                request.append(token, -float(token), END, LONGEST, [(token, -float(token))])
        if request.finished:
            self.running.remove(request)
        return Delta(
            request.index,
            request.token_ids[first:],
            request.logprobs[first:],
            request.finish_reason,
            top_logprobs=request.top_logprobs[first:],
            answer=request.answer,
        )
