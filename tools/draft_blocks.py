"""Draft blocks of a model at every token of its own greedy answers, for tools that look at drafts.

Requests run without verification, so a step adds one token and proposes a block after it: nothing
is skipped, and what stays of a block is known when the answer is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.programs import Handle
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.steps import Outcome


@dataclass(frozen=True)
class Blocks:
    """The blocks of one answer, one after each of its tokens but the last.

    Attributes:
        confidences: [blocks, places] float32.
        accepted: [blocks] int, first drafts that are the tokens of the answer.
    """

    confidences: np.ndarray
    accepted: np.ndarray


@dataclass
class _Recorder:
    """Stands in front of an engine's programs and keeps what every step has proposed."""

    programs: Any
    outcomes: list[Outcome] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.programs, name)

    def prefill(self, *arguments: Any) -> tuple[Any, Any]:
        cache, handle = self.programs.prefill(*arguments)
        return cache, _RecordedHandle(handle, self.outcomes)

    def decode(self, *arguments: Any) -> tuple[Any, Any]:
        cache, handle = self.programs.decode(*arguments)
        return cache, _RecordedHandle(handle, self.outcomes)


@dataclass(frozen=True)
class _RecordedHandle:
    handle: Handle
    outcomes: list[Outcome]

    @property
    def ready(self) -> bool:
        return self.handle.ready

    def read(self) -> Outcome:
        outcome = self.handle.read()
        self.outcomes.append(outcome)
        return outcome


def record_blocks(llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> Iterator[Blocks]:
    """Blocks of the greedy answer to each prompt.

    Args:
        llm: with a drafter and fixed lengths; nobody else may use it.
    """
    engine = llm.engine
    recorder = _Recorder(engine._programs)
    engine._programs = recorder  # type: ignore[assignment]
    params = SamplingParams(max_tokens=max_tokens, temperature=0, draft_tokens=0)
    for prompt in prompts:  # alone, so that the steps are its own
        recorder.outcomes.clear()
        (output,) = llm.generate([list(prompt)], params)
        yield _blocks(recorder.outcomes, output.token_ids)
    engine._programs = recorder.programs


def _blocks(outcomes: Sequence[Outcome], token_ids: Sequence[int]) -> Blocks:
    """Of one request, which ran alone: its slot is the one to which decode steps add a token.

    Its last prefill step, which adds none, has proposed the first block; before it there may be a
    decode step that the request before has wasted.
    """
    emitted = np.stack([outcome.emitted for outcome in outcomes])  # [steps, slots]
    count, places = len(token_ids) - 1, outcomes[0].drafts.shape[1]
    if not count:
        return Blocks(np.zeros((0, places), np.float32), np.zeros(0, np.int64))
    first = int(np.flatnonzero(~emitted.any(axis=1))[-1])
    slot = int(np.argmax(emitted[first + 1]))
    some = outcomes[first : first + count]
    proposed = np.stack([outcome.drafts[slot] for outcome in some])
    confidences = np.stack([outcome.confidences[slot] for outcome in some])
    said = np.array([*token_ids, *[-1] * places])
    following = np.stack([said[at + 1 : at + 1 + places] for at in range(len(some))])
    stays = np.cumprod(proposed == following, axis=1)
    return Blocks(confidences, stays.sum(axis=1))
