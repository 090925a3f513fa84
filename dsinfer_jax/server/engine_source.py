"""An engine as a source of tokens: jobs to requests, deltas to chunks.

Knows of the engine what a request needs, and imports only the light parts of it; the engine itself
is handed in. What only the engine knows (prefix hits, why a request failed) comes out as chunks and
`SourceError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from dsinfer_jax.engine.request import FinishReason, TopLogprobs
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.structured_output import StructuredOutput
from dsinfer_jax.recipe import (
    InferenceChunk,
    InferenceFinishReason,
    PromptUsage,
    SpecialToken,
    Tokenizer,
)
from dsinfer_jax.recipe.encoding import control_id
from dsinfer_jax.server.source import InferenceJob, SourceError, SourceSnapshot
from dsinfer_jax.server.step_log import StepLog

FINISH = {
    FinishReason.STOP: InferenceFinishReason.Stop,
    FinishReason.LENGTH: InferenceFinishReason.Length,
}
STATUSES = {
    FinishReason.PROMPT_TOO_LONG: 400,
    FinishReason.DEADLINE: 504,
    FinishReason.ABORT: 503,
    FinishReason.ERROR: 500,
}
PRIORITY_HINT = "priority"
RETRY_AFTER = 1.0
PREFIX = "dsinfer_"  # of the engine's metrics


class EngineDelta(Protocol):
    """What a step added to a request."""

    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[TopLogprobs]
    finish_reason: FinishReason | None
    error: str | None
    cached_tokens: int
    """Prompt tokens that the prefix cache had; known from the first delta on."""
    output: Any
    """The whole result, a RequestOutput, in the last delta."""


class Engine(Protocol):
    """The part of AsyncEngine that a server uses."""

    @property
    def unavailable(self) -> str | None: ...

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int,
        deadline: float,
        tenant: str,
    ) -> AsyncGenerator[Any, None]: ...

    def snapshot(self) -> dict[str, float]: ...


class EngineSource:
    """Answers jobs with an engine.

    Args:
        engine: entered already, in the loop of the server.
        tokenizer: of the model; it knows the control tokens.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self.tokenizer = tokenizer
        self._steps = StepLog(engine.snapshot)
        self._end = control_id(SpecialToken.Eos.default_str(), tokenizer)
        self._thinking_end = control_id(SpecialToken.ThinkingEnd.default_str(), tokenizer)
        self._marker = control_id(SpecialToken.Dsml.default_str(), tokenizer)

    async def infer(self, job: InferenceJob) -> AsyncGenerator[InferenceChunk, None]:
        """The chunks of one answer; see `source.py`."""
        self._check_available()
        deltas = self._engine.generate(
            job.prompt_ids,
            self._params(job),
            request_id=f"{job.id}-{job.choice}",
            priority=_priority(job),
            deadline=job.deadline,
            tenant=job.tenant,
        )
        is_ready = False
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    self._steps.look()
                    if delta.finish_reason not in (None, *FINISH):
                        raise self._failure(delta)
                    if not is_ready:
                        is_ready = True
                        yield _ready(delta, job)
                    for chunk in self._chunks(delta, with_logprobs=job.options.logprobs):
                        yield chunk
                    if delta.finish_reason is not None:
                        yield InferenceChunk.finish(FINISH[delta.finish_reason])
        except RuntimeError:  # it may have failed, or have been left, since it was asked
            self._check_available()
            raise

    def snapshot(self) -> SourceSnapshot:
        """For metrics and the status page."""
        metrics = self._engine.snapshot()
        self._steps.add(metrics)

        def value(name: str) -> float:
            return metrics[PREFIX + name]

        snapshot: SourceSnapshot = {
            "name": "engine",
            "running": int(value("requests_running")),
            "waiting": int(value("requests_waiting")),
            "cache_used": value("cache_blocks_used") / value("cache_blocks"),
            "cache_hits": _share(value("cached_tokens_total"), value("prompt_tokens_total")),
            "hidden_host_time": _share(
                value("host_hidden_seconds_total"), value("host_seconds_total")
            ),
            "steps": self._steps.records(),
            "metrics": metrics,
        }
        if value("expert_pairs_total"):
            snapshot["balance"] = value("expert_balance")
        if drafted := value("drafted_tokens_total"):
            snapshot["acceptance"] = value("accepted_tokens_total") / drafted
        if self._engine.unavailable is not None:
            snapshot["unavailable"] = self._engine.unavailable
        return snapshot

    def _check_available(self) -> None:
        reason = self._engine.unavailable
        if reason is not None:
            raise SourceError(f"The engine takes no requests: {reason}", 503, RETRY_AFTER)

    def _params(self, job: InferenceJob) -> SamplingParams:
        """The sampling parameters of a job. SourceError for what the engine does not know."""
        options = job.options
        given: dict[str, Any] = {"temperature": options.temperature, "top_p": options.top_p}
        try:
            params = SamplingParams(
                max_tokens=job.max_tokens,
                logprobs=options.logprobs,
                top_logprobs=options.top_logprobs or 0 if options.logprobs else 0,
                structured_output=self._structured_output(job),
                **{name: value for name, value in given.items() if value is not None},
            )
        except ValueError as error:
            raise SourceError(str(error), 400) from None
        return _seeded(params, options.seed, job.choice)

    def _structured_output(self, job: InferenceJob) -> StructuredOutput | None:
        constraint = job.options.output_constraint
        if constraint is None:
            return None
        stage = job.request.parsing_options.thinking_initial_stage
        thinks = stage is not None and stage.starts_in_reasoning()
        return StructuredOutput.of_constraint(
            constraint.kind,
            constraint.schema,
            thinking_end=[self._thinking_end] if thinks else [],
            marker=self._marker,
        )

    def _failure(self, delta: EngineDelta) -> SourceError:
        """The error of a request that the engine has ended."""
        reason = delta.finish_reason
        assert reason is not None
        status = STATUSES[reason]
        if reason is FinishReason.ERROR and self._engine.unavailable is not None:
            status = 503
        elif reason is FinishReason.ERROR and delta.output.times is None:
            status = 400  # it never ran: the engine refused it, or its grammar
        message = delta.error or f"The engine ended the request: {reason}."
        return SourceError(message, status, RETRY_AFTER if status == 503 else None)

    def _chunks(self, delta: EngineDelta, *, with_logprobs: bool) -> Iterator[InferenceChunk]:
        """The new tokens without the one that ends the sequence, which is no part of the text.

        One a chunk: of an output that ends within a character the protocol layer drops the last
        chunk, all of it.
        """
        ids = delta.token_ids
        if delta.finish_reason is FinishReason.STOP and ids and ids[-1] == self._end:
            ids = ids[:-1]
        if not with_logprobs:
            yield from (InferenceChunk.tokens([id]) for id in ids)
            return
        tops = delta.top_logprobs or [[] for _ in ids]
        for id, own, others in zip(ids, delta.logprobs, tops):
            yield InferenceChunk.tokens([id], [(own, list(others))])


def _seeded(params: SamplingParams, seed: int | None, choice: int) -> SamplingParams:
    """The parameters with the seed of one of `n` answers."""
    return params if seed is None else replace(params, seed=params.answer_seed(seed, choice))


def _priority(job: InferenceJob) -> int:
    text = job.hints.get(PRIORITY_HINT, "0")
    try:
        return int(text)
    except ValueError:
        raise SourceError(f"The priority is {text!r}; it must be a whole number.", 400) from None


def _ready(delta: EngineDelta, job: InferenceJob) -> InferenceChunk:
    usage = PromptUsage(
        prompt_tokens=len(job.prompt_ids), prompt_cache_hit_tokens=delta.cached_tokens
    )
    return InferenceChunk.ready(prompt_usage=usage)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
