"""What makes tokens: the only thing that the server asks of an engine or of a mock.

A source is an async generator function. It gets one `InferenceJob` and yields the recipe's chunks:
one `ready` with the sizes of prompt and cache hit, `tokens` (or `text`) as they come, one `finish`.
The server closes the generator when nobody wants the rest (the client is gone, a stop sequence was
met, the deadline is past): a source frees what it holds in its `finally`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from dsinfer_jax.recipe import (
    ConversationRequest,
    InferenceChunk,
    InferenceOptions,
    MultiModalData,
    RenderedPrompt,
)


@dataclass(frozen=True, slots=True)
class InferenceJob:
    """One answer to make.

    Attributes:
        id: of the response; the same for all choices of one request.
        choice: which of the `n` answers this is, from 0.
        request: the converted request: conversation, sampling, constraint, how to parse.
        prompt: as text with the places of its control tokens.
        prompt_ids: the same as token ids.
        images: of the prompt, in order.
        max_tokens: most tokens to generate.
        deadline: on `time.monotonic`; past it nobody waits for the answer.
        tenant: who asks; cached prefixes of different tenants must not mix.
        hints: headers of the request that begin with `x-dsinfer-`, without this, in lower case.
    """

    id: str
    choice: int
    request: ConversationRequest
    prompt: RenderedPrompt
    prompt_ids: list[int]
    images: MultiModalData | None
    max_tokens: int
    deadline: float
    tenant: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> InferenceOptions:
        """Sampling settings and the constraint on the output."""
        return self.request.inference_options


Infer = Callable[[InferenceJob], AsyncGenerator[InferenceChunk, None]]
"""A source. It may raise `SourceError` at any time."""


class SourceError(Exception):
    """An answer cannot be made, or cannot be finished.

    Args:
        message: a sentence for the client.
        status: HTTP status, if nothing was sent yet.
        retry_after: seconds after which trying again makes sense; None: not said.
    """

    def __init__(self, message: str, status: int = 500, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after = retry_after


class StepRecord(TypedDict):
    """Successive steps of an engine, for the plot of the status page."""

    kind: str  # "prefill" or "decode"
    steps: int
    tokens: float  # of one, in the mean
    seconds: float  # of one, in the mean


class SourceSnapshot(TypedDict, total=False):
    """What a source can say about itself; what it does not know it leaves out.

    Shares are in 0..1. `unavailable` is a sentence, there only if nothing can be answered any more.
    `hidden_host_time` is the share of the host's time in which the device was at work. `metrics`
    are further values by their names of Prometheus.
    """

    name: str
    unavailable: str
    running: int
    waiting: int
    cache_used: float
    cache_hits: float
    acceptance: float
    balance: float
    hidden_host_time: float
    steps: list[StepRecord]
    metrics: Mapping[str, Any]


Snapshot = Callable[[], SourceSnapshot]
