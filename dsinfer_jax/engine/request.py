"""What is asked for, what is going on, and what comes out: plain host objects.

This module imports the standard library only, so that a command line or a server can refuse a bad
request before it loads anything heavy.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dsinfer_jax.engine.sampling_params import SamplingParams

TopLogprobs = list[tuple[int, float]]  # token ids with their log-probabilities, best first


class FinishReason(StrEnum):
    """Why a request ended (engine.md 1.5)."""

    STOP = "stop"  # the end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the longest sequence of the engine
    ABORT = "abort"
    PROMPT_TOO_LONG = "prompt_length_exceeded"
    ERROR = "error"  # this request alone; RequestOutput.error says what


@dataclass(frozen=True)
class RequestOutput:
    """A finished request.

    Attributes:
        index: place of its prompt in the call.
        prompt_token_ids: the prompt as the model saw it.
        token_ids: generated ids, the token that ended it included.
        text: their text, without the token or the stop string that ended it.
        finish_reason: see FinishReason.
        logprobs: of each generated token; None if they were not wanted.
        error: a sentence if the request failed, otherwise None.
        stop_reason: the stop string or stop token that ended it, otherwise None.
        top_logprobs: the most likely tokens in place of each generated one; None if not wanted.
        answer: which of the prompt's `n` answers it is.
    """

    index: int
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    logprobs: list[float] | None
    error: str | None = None
    stop_reason: str | int | None = None
    top_logprobs: list[TopLogprobs] | None = None
    answer: int = 0


@dataclass(frozen=True)
class Delta:
    """What one step added to one request.

    Attributes:
        index: place of its prompt in the call.
        token_ids, logprobs: new ones.
        finish_reason, error: set in the last delta of a request.
        text: new text; added by LLM, as is
        output: the whole result, in the last delta.
        top_logprobs: one list for each new token, empty if not wanted.
        answer: which of the prompt's `n` answers it belongs to.
    """

    index: int
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason | None = None
    error: str | None = None
    text: str = ""
    output: RequestOutput | None = None
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    answer: int = 0


@dataclass(eq=False)
class Request:
    """A request inside the engine.

    Attributes:
        index: number by which results are told apart.
        prompt_token_ids, params: as given.
        seed: `params.seed`, or one drawn for this request.
        coupled: draw with noise that no draft can change (design.md 6).
        token_ids, logprobs, top_logprobs: generated so far.
        computed: positions whose keys are in the cache; everything below `length` but the newest
            token once the prompt is done.
        slot, blocks: places in the cache while running.
        finish_reason, stop_reason, error: set when it ends.
    """

    index: int
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    seed: int = -1
    coupled: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    computed: int = 0
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            given = self.params.seed
            self.seed = secrets.randbits(64) if given is None else given

    @property
    def length(self) -> int:
        """Prompt and output so far, in tokens."""
        return len(self.prompt_token_ids) + len(self.token_ids)

    @property
    def prompt_rest(self) -> int:
        """Prompt tokens still to be computed."""
        return max(len(self.prompt_token_ids) - self.computed, 0)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def append(self, token: int, logprob: float, eos_token_id: int, longest: int) -> None:
        """Take a sampled token and end the request if it is the last (engine.md 2.6)."""
        assert not self.finished
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token == eos_token_id and not self.params.ignore_eos:
            self.finish_reason = FinishReason.STOP
        elif token in self.params.stop_token_ids:
            self.finish_reason, self.stop_reason = FinishReason.STOP, token
        elif self.length > longest or len(self.token_ids) == self.params.max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def stop_at(self, text: str) -> None:
        """End the request at a stop string, even if its newest token has ended it otherwise."""
        self.finish_reason, self.stop_reason = FinishReason.STOP, text

    def fail(self, reason: FinishReason, error: str) -> None:
        """End the request with a sentence that says why."""
        self.finish_reason, self.error = reason, error
