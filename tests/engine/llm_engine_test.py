"""The engine over an invented device: ten thousand requests, nothing leaks, everybody ends.

The device step is replaced: it keeps, as the real one does, each slot's newest token, and draws the
next from that and the position, so that a token given to the wrong request or place shows. It adds
as many tokens as it likes, up to what drafts could make.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dsinfer_jax.config import tiny
from dsinfer_jax.engine.devices import OneDevice
from dsinfer_jax.engine.draws import Draws
from dsinfer_jax.engine.engine_config import DecodeForm, EngineConfig
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import FinishReason, Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.steps import DecodeInputs, Outcome, outcome_packing
from dsinfer_jax.model.numerics import EXACT
from dsinfer_jax.model.plan import Slice, prefill_plan

CONFIG = tiny()
MOST = 160
EXPERTS = (CONFIG.num_hidden_layers, CONFIG.n_routed_experts)


class InventedPrograms:
    """Programs whose token at a position is a function of the token before it."""

    report: Sequence[Any] = ()
    seconds = 0.0

    def __init__(self, sizes: EngineConfig) -> None:
        self._sizes = sizes
        self.devices = OneDevice(CONFIG, sizes, EXACT)
        self._newest = np.zeros(sizes.slots, np.int64)
        self._start = np.zeros(sizes.slots, np.int64)
        self._dice = np.random.default_rng(0)

    def wanted_rows(self, rows: int, slots: Sequence[int]) -> list[int]:
        return list(range(len(slots)))

    def sample_rows(self, rows: int) -> int:
        return self._sizes.prefill_bucket(rows).outputs

    def begin(self, request: Request, slot: int) -> None:
        pass

    def prefill(
        self, params: Any, cache: Any, rows: int, slices: Sequence[Slice], draws: Draws, masks: None
    ) -> tuple[Any, "Read"]:
        bucket = self._sizes.prefill_bucket(rows)
        prefill_plan(slices, bucket, CONFIG, self._sizes.truncation)
        tokens = np.zeros(bucket.outputs, np.int64)
        ending = [part for part in slices if part.outputs]
        for row, part in enumerate(ending):
            position = part.start + part.rows
            assert draws.positions[row] == position
            tokens[row] = self._newest[part.slot] = following(part.token_ids[-1], position)
            self._start[part.slot] = position
        return cache, self._read(tokens, np.zeros(self._sizes.slots, np.int64))

    def decode(
        self, params: Any, cache: Any, form: DecodeForm, inputs: DecodeInputs, masks: None
    ) -> tuple[Any, "Read"]:
        slots, most = self._sizes.slots, self._sizes.query_rows
        running = np.asarray(inputs.active) & (self._start <= inputs.last)
        rows = np.minimum(self._dice.integers(1, most + 1, slots), inputs.last - self._start + 1)
        emitted = np.where(running, rows, 0)
        written = [
            (inputs.block_tables[slot, position // 128], position % 128)
            for slot in np.flatnonzero(running)
            for position in range(self._start[slot], min(self._start[slot] + most,
                                                         inputs.last[slot] + 1))
        ]  # fmt: skip
        assert len(set(written)) == len(written), "two requests write one block"
        tokens = np.zeros((slots, most), np.int64)
        for place in range(most):
            more = place < emitted
            self._start[more] += 1
            self._newest[more] = following(self._newest[more], self._start[more])
            tokens[more, place] = self._newest[more]
        return cache, self._read(tokens.reshape(-1), emitted)

    def _read(self, tokens: np.ndarray, emitted: np.ndarray) -> "Read":
        packing = outcome_packing(len(tokens), self._sizes.slots, self._sizes.draft_tokens, EXPERTS)
        outcome: Outcome = packing.unpack_host(np.zeros(packing.size, np.int32))
        sample = replace(outcome.sample, token_ids=tokens)
        first_rows = np.arange(self._sizes.slots) * self._sizes.query_rows
        return Read(replace(outcome, sample=sample, first_rows=first_rows, emitted=emitted.copy()))


@dataclass
class Read:
    """A step that has ended."""

    outcome: Outcome
    ready = True

    def read(self) -> Outcome:
        return self.outcome


def following(token: Any, position: Any) -> Any:
    return 3 + (token * 7 + position) % 500


def expected(one: Request) -> list[int]:
    tokens, newest = [], one.prompt_token_ids[-1]
    for position in range(len(one.prompt_token_ids), one.length):
        newest = following(newest, position)
        tokens.append(newest)
    return tokens


def engine(asynchronous: bool, **options: Any) -> LLMEngine:
    sizes = EngineConfig.of(CONFIG, asynchronous=asynchronous, **options)
    programs: Any = InventedPrograms(sizes)
    return LLMEngine(CONFIG, {"none": jnp.zeros(1)}, EXACT, sizes, programs=programs)  # type: ignore[arg-type]


@pytest.mark.parametrize("drafter", ["off", "lookup"])
@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.slow), True])
def test_ten_thousand_requests_through_a_small_cache(asynchronous: bool, drafter: str) -> None:
    """Up to 256 at once in 30 blocks: preemptions, hits and evictions all the time."""
    served = engine(
        asynchronous, slots=256, max_model_len=500, blocks=30, prefill_rows=(512,), drafter=drafter
    )
    dice = random.Random(2)
    beginnings = [[dice.randrange(3, 500) for _ in range(300)] for _ in range(6)]
    total = done = aborted = 0
    live: dict[int, Request] = {}
    while total < 10_000 or served.has_unfinished_requests():
        while total < 10_000 and len(live) < 300:
            shared = dice.choice(beginnings)[: dice.choice([0, 100, 110, 230])]
            tokens = [*shared, *([3 + total % 400] * dice.randint(1, 30))]
            params = SamplingParams(max_tokens=dice.choice([1, 2, 8, 60, MOST]), ignore_eos=True)
            live[total] = Request(total, tokens, params, seed=0)
            assert served.add_request(live[total]) == []
            total += 1
        if dice.random() < 0.05:
            victim = live.pop(dice.choice(list(live)))
            served.abort_request(victim)
            assert victim.token_ids == expected(victim)
            aborted += 1
        for delta in served.step():
            if delta.finish_reason is not None:
                one = live.pop(delta.index)
                assert one.finish_reason is FinishReason.LENGTH
                assert one.token_ids == expected(one)
                assert len(one.token_ids) == one.params.max_tokens
                done += 1
    scheduler = served._scheduler.each[0]
    assert (done + aborted, live) == (10_000, {})
    assert scheduler.free_blocks == 30
    assert scheduler.slots.free == 256
    assert scheduler.preemptions > 20, scheduler.preemptions
    cache = scheduler.prefix
    assert len(cache._block_of) <= 30
    assert sum(map(len, cache._followers.values())) == len(cache._block_of)
    assert len(scheduler._waiting) + len(scheduler._prompting) == 0
