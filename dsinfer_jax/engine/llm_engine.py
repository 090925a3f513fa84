"""The engine: requests in, one step at a time, tokens out.

A step is one dispatch: slices of prompts, or one token for every request that decodes, and more
where drafts are accepted. Steps are asynchronous, one deep: step N+1 is chosen and handed to the
device while step N runs, and then the host reads the tokens of N. A decode step finds its tokens,
their positions and their drafts on the device, so it needs nothing from the host that the host does
not know; a request that ended in step N wastes its rows of N+1.

The engine knows token ids only; text is the business of `llm.py`.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.engine.compilation import ProgramReport
from dsinfer_jax.engine.constraints import PendingGrammars, accept_token, row_masks
from dsinfer_jax.engine.devices import make_devices
from dsinfer_jax.engine.draft_stats import DraftStats
from dsinfer_jax.engine.draws import host_draws
from dsinfer_jax.engine.engine_config import DecodeForm, EngineConfig
from dsinfer_jax.engine.length_policy import Choice, LengthPolicy, Mode
from dsinfer_jax.engine.markov_check import check_markov_tables
from dsinfer_jax.engine.prefix_check import check_prefix_cache, describe
from dsinfer_jax.engine.programs import Handle, Programs, top_entries
from dsinfer_jax.engine.ranks import Ranks
from dsinfer_jax.engine.request import Delta, FinishReason, Request
from dsinfer_jax.engine.sampler import Sample
from dsinfer_jax.engine.scheduler import DecodeStep, PrefillStep, PromptSlice
from dsinfer_jax.engine.stats import (
    ExpertStats,
    MemoryStats,
    PhaseStats,
    RequestStats,
    gauge_entries,
    phase_entries,
)
from dsinfer_jax.engine.step_times import StepCosts, StepTimes, measure
from dsinfer_jax.engine.steps import DecodeInputs, Outcome
from dsinfer_jax.engine.structured_output import GrammarError
from dsinfer_jax.engine.weights import StoredWeights
from dsinfer_jax.mesh.hosts import Hosts
from dsinfer_jax.model.cache import tree_bytes
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Slice

if TYPE_CHECKING:  # it needs the grammar extra
    from dsinfer_jax.engine.grammar_compiler import GrammarCompiler

_IDLE_SECONDS = 0.005


@dataclass(frozen=True)
class _NewTokens:
    """A sample as lists: much faster to read one by one."""

    token_ids: list[int]
    logprobs: list[float]
    failed: list[bool]
    sample: Sample

    @classmethod
    def of(cls, sample: Sample) -> "_NewTokens":
        token_ids, logprobs, failed = (
            np.asarray(leaf).tolist() for leaf in (sample.token_ids, sample.logprobs, sample.failed)
        )
        return cls(token_ids, logprobs, failed, sample)


@dataclass(frozen=True)
class _Flight:
    """A step that was handed to the device and whose tokens the host has not read."""

    handle: Handle
    rows: Sequence[tuple[int, Request]]  # rows of the sample, or slots, and whose they are
    decode: Choice | None  # of a decode step
    begun: float  # on the engine's clock


class LLMEngine:
    """Runs requests through the compiled programs.

    Args:
        params: weights in memory, or in a folder, from which they are read to where they belong.
        progress: called with one line for each program that is prepared, and one about the prefix
            cache.
        programs: compiled before for the same shapes; None: compiled now.
        costs: what decode steps cost, where lengths are variable; None: measured now, and by every
            step.
        clock: seconds, for these measurements.
        grammars: makes the compiler of grammars; None: no request can be constrained.
        hosts: the processes that run this engine together, each with the same requests in the same
            order; None: this one alone.

    Raises:
        ValueError: deterministic mode on devices that have no invariant numerics.

    Attributes:
        hosts: the processes that run it, see above.
        prefill_stats, decode_stats, request_stats, draft_stats, expert_stats: since construction.
        load_seconds: until the weights were where they belong.
        wait_seconds, host_seconds: of all steps, waiting for the device and everything else.
        hidden_seconds: of the host's, while the device was surely at work.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params | StoredWeights,
        numerics: Numerics,
        sizes: EngineConfig,
        progress: Callable[[str], None] | None = None,
        programs: Programs | None = None,
        grammars: Callable[[], "GrammarCompiler"] | None = None,
        costs: StepCosts | None = None,
        clock: Callable[[], float] = time.perf_counter,
        hosts: Hosts | None = None,
    ) -> None:
        self.config, self.sizes = config, sizes
        self.hosts = hosts
        devices = programs.devices if programs else make_devices(config, sizes, numerics, hosts)
        start = time.perf_counter()
        params = (
            devices.load(params) if isinstance(params, StoredWeights) else devices.params(params)
        )
        self._params, self.load_seconds = params, time.perf_counter() - start
        if sizes.deterministic:
            _check_deterministic(params)
        self._programs = programs or Programs(
            params, config, numerics, sizes, progress, devices=devices
        )
        self._cache = devices.empty_cache()
        self._mover = devices.mover(params)
        self._scheduler = Ranks(sizes, salt=f"{config}{numerics}")
        self._flight: _Flight | None = None
        self._pending = PendingGrammars(grammars)
        self._clock, self._ended_at = clock, 0.0
        self._confidences = np.zeros((sizes.slots * sizes.ranks, sizes.draft_tokens), np.float32)
        self._lengths: LengthPolicy | None = None
        self._reset_stats()
        check_prefix_cache(self)
        if sizes.drafter == "dspark":
            check_markov_tables(self, params)
        self._scheduler.clear_prefixes()
        if sizes.draft_lengths == "variable":
            self._lengths = LengthPolicy(
                sizes.decode_forms, sizes.slots, sizes.draft_tokens, costs or self._measure()
            )
        self._reset_stats()
        if progress is not None:
            progress(describe(self))

    def add_request(self, request: Request) -> list[Delta]:
        """Queue a request. One that can never run ends at once: its only delta is returned."""
        request.arrived_at = time.monotonic()
        reason, error = self._refusal(request)
        if reason is None and self.sizes.deterministic:
            request.fix_draws()
        elif self.hosts is not None and request.params.seed is None:
            request.seed = self.hosts.fresh_seed()  # not each process its own
        try:
            if reason is None and request.params.structured_output is not None:
                self._pending.add(request)
                return []
        except GrammarError as refusal:
            reason, error = FinishReason.ERROR, str(refusal)
        if reason is None:
            self._scheduler.add(request)
            return []
        return [self._fail(request, reason, error)]

    def abort_request(self, request: Request) -> None:
        """End a request where it is; it gives no more deltas."""
        if not request.finished:
            request.fail(FinishReason.ABORT, "the request was aborted by the caller")
            self._pending.drop(request)
            self._end(request)

    def stop_request(self, request: Request, text: str, kept: int) -> None:
        """End a request at a stop string that its first `kept` generated tokens have spelled.

        It gives no more deltas; tokens after those are dropped.
        """
        running = not request.finished
        request.stop_at(text, kept)
        if running:
            self._end(request)

    def has_unfinished_requests(self) -> bool:
        return self._scheduler.unfinished or bool(self._pending)

    def step(self) -> list[Delta]:
        """Hand one step to the device; returns what the step before it added to each request.

        Without asynchronous steps it waits, and returns what this step added.
        """
        start, waited = time.perf_counter(), self.wait_seconds
        begun = self._clock()
        under_way = self._flight
        deltas = self._expire() + self._begin_constrained()
        if self._flight and any(request.matcher for _, request in self._flight.rows):
            deltas += self.flush()  # the next mask depends on the token under way
        if self._scheduler.must_preempt:
            deltas += self.flush()  # a request that has just ended may free what is needed
        step = self._scheduler.next_step()
        flight = None
        if step is not None:
            if self._mover is not None:
                self._params = self._mover.advance(self._params)
            flight = (
                self._prefill(step, begun)
                if isinstance(step, PrefillStep)
                else self._decode(step, begun)
            )
            self._scheduler.dispatched(step)
        if under_way is not None and self._flight is under_way and not under_way.handle.ready:
            self.hidden_seconds += time.perf_counter() - start  # the device worked all the time
        deltas += self.flush()
        self._flight = flight
        if not self.sizes.asynchronous:
            deltas += self.flush()
        if step is None and self._pending:
            time.sleep(_IDLE_SECONDS)  # nothing to do but wait for a grammar
        seconds = time.perf_counter() - start
        self.host_seconds += seconds - (self.wait_seconds - waited)
        if step is not None:
            self._count(step, seconds)
        return deltas

    def flush(self) -> list[Delta]:
        """Wait for the step under way, if there is one; returns what it added."""
        flight, self._flight = self._flight, None
        return self._commit(flight) if flight else []

    def proposals(self, requests: Sequence[Request]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the last step has left for running requests, of a drafter with laws; waits for it.

        Returns:
            Position of the newest token [n] int32, drafts [n, places] int32, and the logits of
            their laws [n, places, vocab] bf16.
        """
        slots = np.array([self._scheduler.slot_of(request) for request in requests], np.int32)
        return self._programs.proposals(slots)

    def close(self) -> None:
        """End the process that builds grammars; it may be called twice."""
        self._pending.close()

    @property
    def program_report(self) -> list[ProgramReport]:
        """The start-up report: one entry for each compiled program."""
        return self._programs.report

    @property
    def program_seconds(self) -> float:
        """How long it took to prepare all programs."""
        return self._programs.seconds

    @property
    def preemptions(self) -> int:
        """How often a request lost its place."""
        return self._scheduler.preemptions - self._preemptions_before

    def snapshot(self) -> dict[str, float]:
        """Every count and value of the moment by its Prometheus name (docs/engine.md)."""
        scheduler = self._scheduler
        return {
            **self.request_stats.entries(),
            **phase_entries("prefill", self.prefill_stats),
            **phase_entries("decode", self.decode_stats),
            **(self.draft_stats.entries() if self.sizes.draft_tokens else {}),
            **self.expert_stats.entries(),
            **(self._mover.entries() if self._mover else {}),
            **gauge_entries(
                requests_running=scheduler.running,
                requests_waiting=scheduler.waiting,
                cache_blocks=self.sizes.blocks * self.sizes.ranks,
                cache_blocks_used=self.sizes.blocks * self.sizes.ranks - scheduler.free_blocks,
                cache_blocks_stored=scheduler.stored_blocks,
                preemptions_total=self.preemptions,
                device_wait_seconds_total=self.wait_seconds,
                host_seconds_total=self.host_seconds,
                host_hidden_seconds_total=self.hidden_seconds,
            ),
        }

    @property
    def memory(self) -> MemoryStats:
        return MemoryStats(
            weights=tree_bytes(self._params),
            cache=tree_bytes(self._cache),
            temporaries=max(report.temporary_bytes for report in self.program_report),
        )

    def _refusal(self, request: Request) -> tuple[FinishReason | None, str]:
        ids = request.prompt_token_ids
        if self.hosts is not None and request.deadline is not None:
            return FinishReason.ERROR, (
                "the request has a deadline, which several processes would find passed in "
                "different steps; leave it out, or run one process"
            )
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
        for name in ("logit_bias", "stop_token_ids"):
            for token in getattr(request.params, name):
                if token >= vocab:
                    return FinishReason.ERROR, (
                        f"{name} has token {token}; ids must be from 0 to {vocab - 1}"
                    )
        return None, ""

    def _prefill(self, step: PrefillStep, begun: float) -> _Flight:
        ending = [part.request for part in step.slices if part.last]
        slots = [self._scheduler.slot_of(request) for request in ending]
        rows = list(zip(self._programs.wanted_rows(step.rows, slots), ending))
        draws = host_draws(rows, self._programs.sample_rows(step.rows))
        for request, slot in zip(ending, slots):
            self._programs.begin(request, slot)
            if self._lengths is not None:
                self._lengths.begin(slot)
        now = time.monotonic()
        for part in step.slices:
            if part.request.computed == part.request.window_start:  # the first of its run
                self.request_stats.admitted(part.request, now)
        slices = [
            _model_slice(part, self._scheduler.slot_of(part.request), self.config)
            for part in step.slices
        ]
        masks = row_masks(rows, len(draws.positions), 1, self.config.vocab_size)
        self._cache, handle = self._programs.prefill(
            self._params, self._cache, step.rows, slices, draws, masks
        )
        return _Flight(handle, rows, None, begun)

    def _decode(self, step: DecodeStep, begun: float) -> _Flight:
        slots, sizes = self._scheduler.slots, self.sizes
        choice = self._choice(step)
        count = sizes.slots * sizes.ranks
        masks = row_masks(step.rows, count, sizes.query_rows, self.config.vocab_size)
        inputs = DecodeInputs(
            slots.earliest >= 0, slots.last, slots.draft_limits,
            np.full(sizes.ranks, choice.budget, np.int32), slots.block_tables, slots.draws,
        )  # fmt: skip
        self._cache, handle = self._programs.decode(
            self._params, self._cache, choice.form, inputs, masks
        )
        return _Flight(handle, step.rows, choice, begun)

    def _choice(self, step: DecodeStep) -> Choice:
        """The program of a decode step and how many drafts it verifies."""
        table = self._scheduler.slots
        running = np.array([slot for slot, _ in step.rows])
        limits = np.minimum(
            table.draft_limits[running], table.last[running] - table.earliest[running]
        )
        if self._lengths is not None:
            return self._lengths.choose(running, limits, self._confidences)
        form = self.sizes.decode_forms[-1]
        mode = Mode.FULL if form.drafts else Mode.OFF
        return Choice(0, mode, form, int(limits.sum()), len(running))

    def _commit(self, flight: _Flight) -> list[Delta]:
        """Give each request the tokens of its rows.

        A request that ended after the step was chosen wasted its rows: their tokens are dropped.
        """
        start = time.perf_counter()
        outcome = flight.handle.read()
        self.wait_seconds += time.perf_counter() - start
        now, ended = time.monotonic(), self._clock()
        seconds, self._ended_at = ended - max(flight.begun, self._ended_at), ended
        live = [(row, request) for row, request in flight.rows if request.finish_reason is None]
        first_rows, emitted = [row for row, _ in live], [1] * len(live)
        if flight.decode is not None:
            slots = np.array(first_rows, np.int32)
            counts = np.asarray(outcome.emitted)
            self._scheduler.settle(slots, counts[slots])
            self.decode_stats.tokens += int(counts.sum())
            first_rows, emitted = outcome.first_rows[slots].tolist(), counts[slots].tolist()
            if self.sizes.draft_tokens:
                self._count_drafts(flight.decode, live, slots, outcome, seconds)
        self._confidences = np.asarray(outcome.confidences)
        experts = self.config.num_hidden_layers, self.config.n_routed_experts
        loads = np.asarray(outcome.expert_loads).reshape(-1, *experts).sum(axis=0)  # of all ranks
        self.expert_stats.add(loads)
        if self._mover is not None:
            self._mover.record(loads)
        new = _NewTokens.of(outcome.sample)
        deltas = []
        for (_, request), first, count in zip(live, first_rows, emitted):
            if request.matcher is not None:
                slot = self._scheduler.slot_of(request)
                count_drafts = outcome.draft_counts[slot]
                request.drafts = outcome.drafts[slot, :count_drafts].tolist()
            deltas.append(self._commit_rows(request, range(first, first + count), new, now))
        return deltas

    def _count_drafts(
        self,
        choice: Choice,
        live: Sequence[tuple[int, Request]],
        slots: np.ndarray,
        outcome: Outcome,
        seconds: float,
    ) -> None:
        """Note what became of the drafts of a decode step, before the next drafts are known."""
        verified = np.asarray(outcome.verified)[slots]
        accepted = np.maximum(np.asarray(outcome.emitted)[slots] - 1, 0)
        for (_, request), tried, stayed in zip(live, verified.tolist(), accepted.tolist()):
            self.request_stats.drafts(request, tried, stayed)
        self.draft_stats.add(choice, self._confidences[slots], verified, accepted)
        if self._lengths is not None:
            self._lengths.read(choice, self._confidences, slots, verified, accepted)
            self._lengths.timed(choice, seconds)

    def _commit_rows(self, request: Request, rows: range, new: "_NewTokens", now: float) -> Delta:
        """Append the tokens of a request's rows, up to the one that ends it."""
        known, longest = request.length, self.sizes.max_model_len
        first, wanted = len(request.token_ids), request.params.top_logprobs
        failure = None
        for row in rows:
            token = new.token_ids[row]
            failure = self._failure(request, row, token, new)
            if failure is not None:
                break
            top = top_entries(new.sample, row, wanted) if wanted else []
            request.append(token, new.logprobs[row], self.config.eos_token_id, longest, top)
            if request.finish_reason is not None:
                break
        blocks = (request.length - 1) // CACHE_BLOCK_TOKENS  # the newest token is not computed
        if failure is None and blocks > (known - 1) // CACHE_BLOCK_TOKENS:
            self._scheduler.store(request, request.length - 1)
        if request.length > known:
            self.request_stats.tokens(request, request.length - known, now)
        if failure is not None:
            request.fail(FinishReason.ERROR, failure)
        if request.finish_reason is not None:
            self._end(request)
        return _delta(request, first)

    def _failure(self, request: Request, row: int, token: int, new: "_NewTokens") -> str | None:
        """Why the token of a row cannot be taken; otherwise the request's grammar takes it."""
        if new.failed[row]:
            self._scheduler.forget(request)
            return (
                f"the model's output at position {request.length - 1} is not finite; "
                "check the checkpoint, or report the prompt"
            )
        return accept_token(request, token)

    def _begin_constrained(self) -> list[Delta]:
        """Queue requests whose grammars are ready; fail those whose grammars are refused."""
        failed = []
        for request, error in self._finished_grammars():
            if error is None:
                self._scheduler.add(request)
            else:
                failed.append(self._fail(request, FinishReason.ERROR, error))
        return failed

    def _finished_grammars(self) -> list[tuple[Request, str | None]]:
        """Grammars that are ready or refused. Several processes wait for all of them, so that each
        goes on in the same step, and one that refuses decides for all."""
        if self.hosts is None or not self._pending:
            return self._pending.finished()
        own = self._pending.finished(wait=True)
        said = self.hosts.gather("the grammars", json.dumps([error for _, error in own]))
        everybodys = zip(*map(json.loads, said))
        return [
            (request, next((error for error in errors if error is not None), None))
            for (request, _), errors in zip(own, everybodys)
        ]

    def _expire(self) -> list[Delta]:
        now = time.monotonic()
        late = self._scheduler.expired(now) + self._pending.expired(now)
        sentence = "its deadline passed before it was done; allow more time, or send less at once"
        return [self._fail(request, FinishReason.DEADLINE, sentence) for request in late]

    def _fail(self, request: Request, reason: FinishReason, error: str) -> Delta:
        request.fail(reason, error)
        self._end(request)
        return _delta(request, len(request.token_ids))

    def _end(self, request: Request) -> None:
        self._scheduler.release(request)
        self.request_stats.end(request, time.monotonic())

    def _reset_stats(self) -> None:
        self.prefill_stats, self.decode_stats = PhaseStats(), PhaseStats()
        self.request_stats, self.draft_stats = RequestStats(), DraftStats()
        self.expert_stats = ExpertStats()
        self.wait_seconds = self.host_seconds = self.hidden_seconds = 0.0
        self._preemptions_before = self._scheduler.preemptions

    def _measure(self) -> StepTimes:
        """Time the decode programs. Nothing may be under way."""

        def run(form: DecodeForm, running: int) -> None:
            inputs = self._programs.rehearse(form, running)
            self._cache, handle = self._programs.decode(self._params, self._cache, form, inputs)
            handle.read()

        return StepTimes(measure(self.sizes.decode_forms, self.sizes.slots, run, self._clock))

    def _count(self, step: PrefillStep | DecodeStep, seconds: float) -> None:
        if isinstance(step, PrefillStep):
            self.prefill_stats.add(sum(part.count for part in step.slices), seconds)
        else:
            self.decode_stats.add(0, seconds)  # its tokens count when they are read


def _delta(request: Request, first: int) -> Delta:
    """What a request has from its `first` generated token on, and how it stands."""
    return Delta(
        request.index,
        request.token_ids[first:],
        request.logprobs[first:],
        request.finish_reason,
        request.error,
        top_logprobs=request.top_logprobs[first:],
        answer=request.answer,
        cached_tokens=request.cached_tokens,
    )


def _check_deterministic(params: Params) -> None:
    """Rows keep their bits in any company on CPUs only so far (docs/batch_invariance.md)."""
    platforms = {device.platform for leaf in jax.tree.leaves(params) for device in leaf.devices()}
    if platforms != {"cpu"}:
        raise ValueError(
            f"deterministic is True and the weights are on {', '.join(sorted(platforms))}; "
            "numerics that do not depend on the batch are known for cpu only"
        )


def _model_slice(part: PromptSlice, slot: int, config: ModelConfig) -> Slice:
    request, start = part.request, part.request.computed
    look_back = config.engram.max_ngram_size - 1 if config.engram else 0
    return Slice(
        slot=slot,
        token_ids=request.known_tokens(start, start + part.count),
        start=start,
        # not the output: after a preemption its rows are computed as decoding computed them
        known_length=len(request.prompt_token_ids),
        blocks=request.blocks,
        previous_ids=request.known_tokens(max(start - look_back, 0), start),
        valid_start=request.window_start,
        stored_length=request.stored_tokens,
        outputs=[part.count - 1] if part.last else [],
    )
