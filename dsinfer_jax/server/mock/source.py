"""The mock as a source of tokens."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from time import monotonic

from dsinfer_jax.recipe import InferenceChunk, InferenceFinishReason, PromptUsage, Tokenizer
from dsinfer_jax.server.mock.faults import Fault, read_fault, refuse, spoil_chunks, spoil_ids
from dsinfer_jax.server.mock.outputs import chosen_answer, output_ids
from dsinfer_jax.server.mock.script import Script
from dsinfer_jax.server.source import InferenceJob, SourceSnapshot, StepRecord

BLOCK = 64  # tokens of a cached prefix block
BLOCKS = 4_096
STEPS = 120
FAULT_HINT = "fault"


def demo_tokenizer() -> Tokenizer:
    """The tokenizer of the embedded model, read without its weights."""
    path = files("dsinfer_jax") / "demo" / "tokenizer.json"
    return Tokenizer.from_str(path.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class MockOptions:
    """How the mock answers.

    Attributes:
        answer: a fixed text; None: what was asked is said again.
        script: plays instead of an answer.
        fault: of every answer; a header of a request wins.
        delay: seconds before each piece of output.
        tokens_per_chunk: size of a piece.
    """

    answer: str | None = None
    script: Script | None = None
    fault: Fault | None = None
    delay: float = 0.0
    tokens_per_chunk: int = 4

    def __post_init__(self) -> None:
        if self.tokens_per_chunk < 1:
            raise ValueError(f"tokens_per_chunk is {self.tokens_per_chunk}; it must be 1 or more")
        if self.delay < 0:
            raise ValueError(f"delay is {self.delay}; it must be 0 or more")


class PrefixMemory:
    """Which prefixes were seen: digests of blocks, each of which stands for all before it."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    @property
    def used(self) -> float:
        """Share of the memory that is taken."""
        return len(self._blocks) / BLOCKS

    def add(self, tenant: str, ids: list[int]) -> int:
        """Remember a prompt; how many of its first tokens were known, never all of them."""
        digest = blake2b(tenant.encode(), digest_size=16).digest()
        known = 0
        hit = True
        for start in range(0, len(ids) - BLOCK, BLOCK):
            block = b"".join(id.to_bytes(4, "little") for id in ids[start : start + BLOCK])
            digest = blake2b(digest + block, digest_size=16).digest()
            hit = hit and digest in self._blocks
            known += BLOCK if hit else 0
            self._blocks[digest] = None
            self._blocks.move_to_end(digest)
        while len(self._blocks) > BLOCKS:
            self._blocks.popitem(last=False)
        return known


class MockSource:
    """Answers jobs without a model.

    Attributes:
        tokenizer: of prompts and output.
        running: jobs that are being answered.
    """

    def __init__(self, options: MockOptions | None = None, tokenizer: Tokenizer | None = None):
        self._options = options or MockOptions()
        self.tokenizer = tokenizer or demo_tokenizer()
        self.running = 0
        self._memory = PrefixMemory()
        self._steps: deque[StepRecord] = deque(maxlen=STEPS)
        self._prompt_tokens = 0
        self._cached_tokens = 0

    async def infer(self, job: InferenceJob) -> AsyncGenerator[InferenceChunk, None]:
        """The chunks of one answer."""
        fault = self._options.fault
        if FAULT_HINT in job.hints:
            fault = read_fault(job.hints[FAULT_HINT])
        refuse(fault)
        self.running += 1
        try:
            if self._options.script is not None:
                chunks = self._options.script.play(job, self.tokenizer)
            else:
                answer = chosen_answer(job.request.conversation, self._options.answer)
                ids = output_ids(job, answer, self.tokenizer)
                ids = spoil_ids(fault, ids, self.tokenizer)
                chunks = spoil_chunks(fault, self._chunks(job, ids), len(ids))
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        finally:
            self.running -= 1

    def snapshot(self) -> SourceSnapshot:
        """For metrics and the status page."""
        return {
            "name": "mock",
            "running": self.running,
            "waiting": 0,
            "cache_used": self._memory.used,
            "cache_hits": self._cached_tokens / max(1, self._prompt_tokens),
            "steps": list(self._steps),
        }

    async def _chunks(
        self, job: InferenceJob, ids: list[int]
    ) -> AsyncGenerator[InferenceChunk, None]:
        tokens = len(job.prompt_ids)
        known = self._memory.add(job.tenant, job.prompt_ids)
        self._prompt_tokens += tokens
        self._cached_tokens += known
        self._step("prefill", tokens - known, 0.0)
        usage = PromptUsage(prompt_tokens=tokens, prompt_cache_hit_tokens=known)
        yield InferenceChunk.ready(prompt_usage=usage)
        size = self._options.tokens_per_chunk
        limited = ids[: job.max_tokens]
        for start in range(0, len(limited), size):
            began = monotonic()
            await asyncio.sleep(self._options.delay)
            piece = limited[start : start + size]
            yield InferenceChunk.tokens(piece, self._logprobs(job, piece))
            self._step("decode", len(piece), monotonic() - began)
        reason = InferenceFinishReason.Length if len(limited) < len(ids) else None
        yield InferenceChunk.finish(reason or InferenceFinishReason.Stop)

    def _logprobs(
        self, job: InferenceJob, ids: list[int]
    ) -> list[tuple[float, list[tuple[int, float]]]] | None:
        """Made-up values, the same for the same token."""
        if not job.options.logprobs:
            return None
        number = job.options.top_logprobs or 0
        return [
            (
                -0.125,
                [(id, -0.125), *((other, -2.5 - other) for other in range(1, number))][:number],
            )
            for id in ids
        ]

    def _step(self, kind: str, tokens: int, seconds: float) -> None:
        self._steps.append({"kind": kind, "steps": 1, "tokens": tokens, "seconds": seconds})
