"""One answer while it is made: chunks of the source in, batches of a dialect's events out.

The law of this module: a source that ends without saying so, or without any output, is an error,
never a short answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from time import monotonic
from typing import Any

from dsinfer_jax.recipe import InferenceChunk, InferenceOptions, PromptUsage, StreamProcessor
from dsinfer_jax.server.prepare import Prepared
from dsinfer_jax.server.source import Infer, InferenceJob, SourceError

Batch = list[Any]  # events of the dialect

NO_OUTPUT = "The model ended without any output."
CUT_OFF = "The model's output ended before it was complete."


class Answer:
    """The events of one request.

    Attributes:
        output_tokens: of all choices so far.
        finish_reasons: of the choices that have ended.
        first_output: when the first output came, on `time.monotonic`; None: none yet.
    """

    def __init__(self, prepared: Prepared, infer: Infer, stall_timeout: float) -> None:
        self._prepared = prepared
        self._infer = infer
        self._stall_timeout = stall_timeout
        self._usage: PromptUsage | None = None
        self.output_tokens = 0
        self.finish_reasons: list[str] = []
        self.first_output: float | None = None

    @property
    def prepared(self) -> Prepared:
        return self._prepared

    @property
    def prompt_tokens(self) -> int:
        """As the source reported them; until then, of the job."""
        return self._usage.prompt_tokens if self._usage else len(self._prepared.jobs[0].prompt_ids)

    @property
    def cached_tokens(self) -> int:
        """Of these, those that the source had cached."""
        return self._usage.prompt_cache_hit_tokens if self._usage else 0

    @property
    def complete(self) -> bool:
        """Whether the last batch is out."""
        return len(self.finish_reasons) == len(self._prepared.jobs)

    def pings(self) -> Batch:
        """Events for a connection that has been quiet, if the dialect has such."""
        return self._prepared.processors[0].ping()

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Events in order, as they come. Raises SourceError."""
        pairs = zip(self._prepared.jobs, self._prepared.processors)
        choices = [self._choice(job, processor) for job, processor in pairs]
        stream = choices[0] if len(choices) == 1 else merged(choices)
        async with aclosing(stream):
            async for batch in stream:
                yield batch

    async def _choice(
        self, job: InferenceJob, processor: StreamProcessor
    ) -> AsyncGenerator[Batch, None]:
        has_output = False
        async with aclosing(self._infer(job)) as chunks:
            async for chunk in self._timely(chunks):
                if chunk.kind == "ready":
                    events = processor.push(self._ready(chunk, job))
                elif chunk.kind == "finish":
                    if not has_output:
                        raise SourceError(NO_OUTPUT, 502)
                    self.finish_reasons.append(str(chunk.finish_reason).rpartition(".")[2].lower())
                    yield processor.push(chunk)
                    return
                else:
                    has_output |= self._count(chunk)
                    events = processor.push(within_options(chunk, job.options))
                if processor.finished:
                    self.finish_reasons.append("stop_sequence")
                if events:
                    yield events
                if processor.finished:  # closing the source stops it
                    return
        raise SourceError(CUT_OFF if has_output else NO_OUTPUT, 502)

    async def _timely(
        self, chunks: AsyncGenerator[InferenceChunk, None]
    ) -> AsyncIterator[InferenceChunk]:
        """The chunks; SourceError if the next one takes too long once there was output."""
        while True:
            try:
                limit = None if self.first_output is None else self._stall_timeout
                async with asyncio.timeout(limit) as timeout:
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not timeout.expired():
                    raise
                raise SourceError(
                    f"The model gave no output for {self._stall_timeout:g} seconds.", 504
                ) from None
            yield chunk

    def _ready(self, chunk: InferenceChunk, job: InferenceJob) -> InferenceChunk:
        """The sizes of the prompt. The first choice that is ready says them for all.

        A source that does not know how long the prompt is gets that from the job.
        """
        if self._usage is None:
            usage = chunk.prompt_usage or PromptUsage()
            self._usage = PromptUsage(
                prompt_tokens=usage.prompt_tokens or len(job.prompt_ids),
                prompt_cache_hit_tokens=usage.prompt_cache_hit_tokens,
            )
        return InferenceChunk.ready(
            prompt_usage=self._usage, system_fingerprint=chunk.system_fingerprint
        )

    def _count(self, chunk: InferenceChunk) -> bool:
        """Count the output of a chunk; whether there is any."""
        ids = chunk.token_ids
        self.output_tokens += len(ids) if ids is not None else chunk.token_count or 0
        has_output = bool(ids or chunk.content)
        if has_output and self.first_output is None:
            self.first_output = monotonic()
        return has_output


def within_options(chunk: InferenceChunk, options: InferenceOptions) -> InferenceChunk:
    """The chunk without log probabilities that nobody asked for (recipe.md 7)."""
    logprobs = chunk._detail if chunk.kind == "tokens" else None
    if logprobs is None:
        return chunk
    if not options.logprobs:
        return InferenceChunk.tokens(chunk.token_ids or [])
    wanted = options.top_logprobs or 0
    return InferenceChunk.tokens(
        chunk.token_ids or [], [(own, others[:wanted]) for own, others in logprobs]
    )


async def merged(streams: list[AsyncGenerator[Batch, None]]) -> AsyncGenerator[Batch, None]:
    """The batches of all streams as they come; the first error ends them all."""
    queue: asyncio.Queue[tuple[Batch | None, Exception | None]] = asyncio.Queue(maxsize=1)

    async def pump(stream: AsyncGenerator[Batch, None]) -> None:
        try:
            async with aclosing(stream):
                async for batch in stream:
                    await queue.put((batch, None))
        except Exception as error:
            await queue.put((None, error))
        else:
            await queue.put((None, None))

    pumps = [asyncio.ensure_future(pump(stream)) for stream in streams]
    try:
        running = len(pumps)
        while running:
            batch, error = await queue.get()
            if error is not None:
                raise error
            if batch is None:
                running -= 1
            else:
                yield batch
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
