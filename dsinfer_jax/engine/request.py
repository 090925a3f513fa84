"""What is asked for, what is going on, and what comes out: plain host objects.

This module imports the standard library only, so that a command line or a server can refuse a bad
request before it loads anything heavy.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING

from dsinfer_jax.engine.sampling_params import SamplingParams

if TYPE_CHECKING:  # it needs the grammar extra
    from dsinfer_jax.engine.grammar import Matcher

TopLogprobs = list[tuple[int, float]]  # token ids with their log-probabilities, best first


class FinishReason(StrEnum):
    """Why a request ended (engine.md 1.5)."""

    STOP = "stop"  # the end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the longest sequence of the engine
    ABORT = "abort"
    PROMPT_TOO_LONG = "prompt_length_exceeded"
    DEADLINE = "deadline_exceeded"
    ERROR = "error"  # this request alone; RequestOutput.error says what


@dataclass(frozen=True)
class CacheMiss:
    """Why not more of a prompt came from the prefix cache.

    Attributes:
        block: the first block of 128 tokens that was not used.
        part: of the cache that lacks it: "blocks" (compressed keys), or "windows" (window keys,
            which are rebuilt by computing tokens again).
        token: place of the token at which the match ended.
        detail: the same as a sentence.
    """

    block: int
    part: str
    token: int
    detail: str


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
        cached_tokens: known tokens that were not computed when it last started, because the
            prefix cache had them.
        why_miss: why those are not more; None: as many as are possible, or it never started.
        times: seconds it spent, see RequestTimes; None if it never started.
        drafted_tokens, accepted_tokens: verified for it, and of those the ones that stayed.
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
    cached_tokens: int = 0
    why_miss: CacheMiss | None = None
    times: "RequestTimes | None" = field(default=None, compare=False)
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True)
class RequestTimes:
    """Seconds of one request.

    Attributes:
        queue: from arrival to its first place.
        first_token: from arrival to its first token on the host; None without one.
    """

    queue: float
    first_token: float | None


@dataclass(slots=True)  # frozen ones take three times as long to make, and there are many
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
        cached_tokens: as in RequestOutput, known from the first delta on.
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
    cached_tokens: int = 0


@dataclass(eq=False)
class Request:
    """A request inside the engine.

    Attributes:
        index: number by which results are told apart.
        prompt_token_ids, params: as given.
        seed: `params.seed`, or one drawn for this request.
        priority: lower runs first; equals in order of arrival.
        deadline: on the engine's clock (time.monotonic): past it the request fails. None: never.
        tenant: requests of different tenants never share cached prefixes.
        answer: which of the prompt's `n` answers it is.
        coupled: draw with noise that no draft can change (design.md 6).
        matcher: where the output stands in its grammar; None: it is free.
        grammar_error: why the grammar cannot go on.
        token_ids, logprobs, top_logprobs: generated so far.
        arrival: place in the order of arrival; set by the scheduler.
        slot, blocks: places in the cache while running.
        target: known tokens when it was admitted, which it has to compute before it decodes.
        computed: of those, how many are in the cache.
        window_start: first token whose window keys this run has.
        stored_tokens: whose compressed keys came from the cache; they are not written again.
        block_digests, stored_blocks: of the prefix cache.
        cached_tokens, why_miss: see RequestOutput.
        drafts: proposed for its next step; only what is constrained needs them here.
        drafted_tokens, accepted_tokens: of its steps so far.
        preemptions: how often it lost its place and started again.
        arrived_at, admitted_at, first_token_at: on the engine's clock; admitted the first time.
        finish_reason, stop_reason, error: set when it ends.
    """

    index: int
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    seed: int = -1
    priority: int = 0
    deadline: float | None = None
    tenant: str = ""
    answer: int = 0
    coupled: bool = False
    matcher: "Matcher | None" = None
    grammar_error: str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    arrival: int = 0
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    target: int = 0
    computed: int = 0
    window_start: int = 0
    stored_tokens: int = 0
    block_digests: list[bytes] = field(default_factory=list)
    stored_blocks: int = 0
    cached_tokens: int = 0
    why_miss: CacheMiss | None = None
    drafts: list[int] = field(default_factory=list)
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    arrived_at: float = 0.0
    admitted_at: float | None = None
    first_token_at: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            given = self.params.seed
            self.seed = secrets.randbits(64) if given is None else given

    def fix_draws(self) -> None:
        """Deterministic mode: no draw may depend on a draft or on chance (design.md 6)."""
        self.coupled = True
        if self.params.seed is None:
            words = b"".join(token.to_bytes(4, "little") for token in self.prompt_token_ids)
            seed = int.from_bytes(blake2b(words, digest_size=8).digest(), "little")
            self.seed = self.params.answer_seed(seed, self.answer)

    @property
    def times(self) -> RequestTimes | None:
        """None before it has had a place."""
        if self.admitted_at is None:
            return None
        first = self.first_token_at
        return RequestTimes(
            self.admitted_at - self.arrived_at, None if first is None else first - self.arrived_at
        )

    @property
    def length(self) -> int:
        """Prompt and output so far, in tokens."""
        return len(self.prompt_token_ids) + len(self.token_ids)

    @property
    def rest(self) -> int:
        """Known tokens still to be computed before the request can decode."""
        return self.target - self.computed

    def known_tokens(self, start: int, stop: int) -> list[int]:
        """Prompt and output from `start` to before `stop`."""
        prompt = len(self.prompt_token_ids)
        output = self.token_ids[max(start - prompt, 0) : max(stop - prompt, 0)]
        return [*self.prompt_token_ids[start:stop], *output]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def append(
        self,
        token: int,
        logprob: float,
        eos_token_id: int,
        longest: int,
        top: TopLogprobs | None = None,
    ) -> None:
        """Take a sampled token and end the request if it is the last (engine.md 2.6)."""
        assert not self.finished
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if top:
            self.top_logprobs.append(top)
        if token == eos_token_id and not self.params.ignore_eos:
            self.finish_reason = FinishReason.STOP
        elif token in self.params.stop_token_ids:
            self.finish_reason, self.stop_reason = FinishReason.STOP, token
        elif self.length > longest or len(self.token_ids) == self.params.max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def stop_at(self, text: str, kept: int) -> None:
        """End the request at a stop string that its first `kept` generated tokens have spelled.

        Later tokens are dropped, and so is the end that one of them made.
        """
        for values in (self.token_ids, self.logprobs, self.top_logprobs):
            del values[kept:]
        self.finish_reason, self.stop_reason, self.error = FinishReason.STOP, text, None

    def fail(self, reason: FinishReason, error: str) -> None:
        """End the request with a sentence that says why."""
        self.finish_reason, self.error = reason, error
