"""The engine: requests in, one step at a time, tokens out.

A step is one dispatch: slices of prompts, or one token for every request that decodes. The engine
knows token ids only; text is the business of `llm.py`.
"""

import time
from collections.abc import Callable, Iterable

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.draws import host_draws
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.programs import ProgramReport, Programs, read_sample
from dsinfer_jax.engine.request import Delta, FinishReason, Request
from dsinfer_jax.engine.sampler import Sample
from dsinfer_jax.engine.scheduler import PrefillStep, PromptSlice, Scheduler
from dsinfer_jax.engine.stats import MemoryStats, PhaseStats
from dsinfer_jax.model import cache as model_cache
from dsinfer_jax.model.cache import tree_bytes
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Slice


class LLMEngine:
    """Runs requests through the compiled programs.

    Args:
        params: weights on their devices.
        progress: called with one line for each program that is prepared.

    Attributes:
        prefill_stats, decode_stats: since construction.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        numerics: Numerics,
        sizes: EngineConfig,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.config, self.sizes = config, sizes
        self._params = params
        self._programs = Programs(params, config, numerics, sizes, progress)
        self._cache = model_cache.init(config, sizes.cache_sizes, numerics)
        self._scheduler = Scheduler(sizes)
        self.prefill_stats, self.decode_stats = PhaseStats(), PhaseStats()

    def add_request(self, request: Request) -> list[Delta]:
        """Queue a request. One that can never run ends at once: its only delta is returned."""
        reason, error = self._refusal(request)
        if reason is None:
            self._scheduler.add(request)
            return []
        request.fail(reason, error)
        return [Delta(request.index, [], [], reason, error)]

    def abort_request(self, request: Request) -> None:
        """End a request where it is; it gives no more deltas."""
        if not request.finished:
            request.fail(FinishReason.ABORT, "the request was aborted by the caller")
            self._scheduler.release(request)

    def has_unfinished_requests(self) -> bool:
        return self._scheduler.unfinished

    def step(self) -> list[Delta]:
        """Run one step; returns what it added to each request."""
        start = time.perf_counter()
        prefill = self._scheduler.next_prefill()
        if prefill is not None:
            deltas = self._prefill(prefill)
            tokens = sum(part.count for part in prefill.slices)
            self.prefill_stats.add(tokens, time.perf_counter() - start)
        elif self._scheduler.slots.decoding:
            deltas = self._decode()
            self.decode_stats.add(len(deltas), time.perf_counter() - start)
        else:
            deltas = []
        return deltas

    @property
    def program_report(self) -> list[ProgramReport]:
        """The start-up report: one entry for each compiled program."""
        return self._programs.report

    @property
    def program_seconds(self) -> float:
        """How long it took to prepare all programs."""
        return self._programs.seconds

    @property
    def memory(self) -> MemoryStats:
        return MemoryStats(
            weights=tree_bytes(self._params),
            cache=tree_bytes(self._cache),
            temporaries=max(report.temporary_bytes for report in self.program_report),
        )

    def _refusal(self, request: Request) -> tuple[FinishReason | None, str]:
        ids = request.prompt_token_ids
        if not ids:
            return FinishReason.ERROR, "the prompt is empty; give at least one token"
        longest, vocab = self.sizes.max_model_len, self.config.vocab_size
        if len(ids) > longest:
            return FinishReason.PROMPT_TOO_LONG, (
                f"the prompt has {len(ids)} tokens; max_model_len allows {longest}"
            )
        for place, token in enumerate(ids):
            if not 0 <= token < vocab:
                return FinishReason.ERROR, (
                    f"token {place} of the prompt is {token}; ids must be from 0 to {vocab - 1}"
                )
        return None, ""

    def _prefill(self, step: PrefillStep) -> list[Delta]:
        ending = [part.request for part in step.slices if part.last]
        draws = host_draws(ending, self._programs.prefill_bucket(step.rows).outputs)
        for request in ending:
            if request.params.adjusted:
                self._programs.begin(request)
        slices = [_model_slice(part, self.config) for part in step.slices]
        self._cache, packed = self._programs.prefill(
            self._params, self._cache, step.rows, slices, draws
        )
        for part in step.slices:
            self._scheduler.computed(part)
        return self._commit(ending, range(len(ending)), read_sample(packed))

    def _decode(self) -> list[Delta]:
        slots = self._scheduler.slots
        running = slots.decoding
        self._cache, packed = self._programs.decode(
            self._params, self._cache, slots.token_ids, slots.start, slots.block_tables, slots.draws
        )
        for _, request in running:
            request.computed += 1
        requests = [request for _, request in running]
        return self._commit(requests, [slot for slot, _ in running], read_sample(packed))

    def _commit(
        self, requests: Iterable[Request], rows: Iterable[int], sample: Sample
    ) -> list[Delta]:
        """Give each request the token of its row; go on with those that are not done."""
        return [self._commit_row(request, row, sample) for request, row in zip(requests, rows)]

    def _commit_row(self, request: Request, row: int, sample: Sample) -> Delta:
        slots = self._scheduler.slots
        started = bool(request.token_ids)
        if sample.failed[row]:
            error = (
                f"the model's output at position {request.length - 1} is not finite; "
                "check the checkpoint, or report the prompt"
            )
            request.fail(FinishReason.ERROR, error)
            self._scheduler.release(request)
            return Delta(request.index, [], [], request.finish_reason, error)
        token, logprob = int(sample.token_ids[row]), float(sample.logprobs[row])
        request.append(token, logprob, self.config.eos_token_id, self.sizes.max_model_len)
        if request.finished:
            self._scheduler.release(request)
        elif started:
            slots.advance(request)
        else:
            slots.begin(request)
        return Delta(request.index, [token], [logprob], request.finish_reason)


def _model_slice(part: PromptSlice, config: ModelConfig) -> Slice:
    request, start = part.request, part.request.computed
    assert request.slot is not None
    ids = request.prompt_token_ids
    look_back = config.engram.max_ngram_size - 1 if config.engram else 0
    return Slice(
        slot=request.slot,
        token_ids=ids[start : start + part.count],
        start=start,
        known_length=len(ids),
        blocks=request.blocks,
        previous_ids=ids[max(start - look_back, 0) : start],
        outputs=[part.count - 1] if part.last else [],
    )
