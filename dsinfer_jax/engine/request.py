"""What is asked for, what is going on, and what comes out: plain host objects.

This module imports the standard library only, so that a command line or a server can refuse a bad
request before it loads anything heavy.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_LARGEST_COUNT = 2**31 - 1


class FinishReason(StrEnum):
    """Why a request ended (engine.md 1.5)."""

    STOP = "stop"  # the end-of-sequence token, which is the last of the output
    LENGTH = "length"  # max_tokens or the longest sequence of the engine
    ABORT = "abort"
    PROMPT_TOO_LONG = "prompt_length_exceeded"
    ERROR = "error"  # this request alone; RequestOutput.error says what


@dataclass(frozen=True)
class SamplingParams:
    """How tokens of one request are chosen and when it ends.

    Attributes:
        max_tokens: most tokens to generate, 1 or more.
        temperature: 0 takes the most likely token, lowest id among equals; the filters then do not
            matter. Larger values divide the logits.
        top_p: keep the most likely tokens up to this mass, in (0, 1]; the token that crosses the
            limit is kept. 1 keeps all.
        top_k: keep so many of the most likely tokens, lowest id among equals. 0 and -1 keep all.
        seed: 64-bit number that fixes every draw, whatever else runs; prompts that share it share
            random numbers position by position. None draws a fresh one for each request.
        ignore_eos: go on after the end-of-sequence token.
        logprobs: return the logarithm of each chosen token's probability in the raw law, before
            temperature and filters.

    Raises:
        ValueError: one sentence with field, value and what is allowed.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: bool = True

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1, _LARGEST_COUNT)
        _number("temperature", self.temperature)
        if not 0 <= self.temperature < math.inf:
            _refuse("temperature", self.temperature, "a finite number, 0 or more")
        _number("top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            _refuse("top_p", self.top_p, "above 0 and at most 1; use 1 to keep all tokens")
        _whole("top_k", self.top_k, -1, _LARGEST_COUNT)
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**64 - 1)
        for name in ("ignore_eos", "logprobs"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "True or False")


def _refuse(name: str, value: object, allowed: str) -> None:
    raise ValueError(f"{name} is {value!r}; it must be {allowed}")


def _whole(name: str, value: Any, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        _refuse(name, value, f"a whole number from {lowest} to {highest}")


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(name, value, "a number")


@dataclass(frozen=True)
class RequestOutput:
    """A finished request.

    Attributes:
        index: place of its prompt in the call.
        prompt_token_ids: the prompt as the model saw it.
        token_ids: generated ids, the end-of-sequence token included.
        text: their text, without the end-of-sequence token that ended it.
        finish_reason: see FinishReason.
        logprobs: of each generated token, in the raw law; None if they were not wanted.
        error: a sentence if the request failed, otherwise None.
    """

    index: int
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    logprobs: list[float] | None
    error: str | None = None


@dataclass(frozen=True)
class Delta:
    """What one step added to one request.

    Attributes:
        index: place of its prompt in the call.
        token_ids, logprobs: new ones.
        finish_reason, error: set in the last delta of a request.
        text: new text; added by LLM, as is
        output: the whole result, in the last delta.
    """

    index: int
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason | None = None
    error: str | None = None
    text: str = ""
    output: RequestOutput | None = None


@dataclass(eq=False)
class Request:
    """A request inside the engine.

    Attributes:
        index: number by which results are told apart.
        prompt_token_ids, params: as given.
        seed: `params.seed`, or one drawn for this request.
        token_ids, logprobs: generated so far.
        computed: positions whose keys are in the cache; everything below `length` but the newest
            token once the prompt is done.
        slot, blocks: places in the cache while running.
        finish_reason, error: set when it ends.
    """

    index: int
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    seed: int = -1
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    computed: int = 0
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
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
        elif self.length > longest or len(self.token_ids) == self.params.max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def fail(self, reason: FinishReason, error: str) -> None:
        """End the request with a sentence that says why."""
        self.finish_reason, self.error = reason, error
