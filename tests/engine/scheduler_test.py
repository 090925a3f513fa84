"""Choosing steps, on the host alone: everybody ends, nothing leaks, every step fits its bucket."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, tiny
from dsinfer_jax.engine.engine_config import PREFILL_TILE_ROWS, EngineConfig
from dsinfer_jax.engine.ranks import Ranks
from dsinfer_jax.engine.request import FinishReason, Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.scheduler import DecodeStep, PrefillStep
from dsinfer_jax.model.plan import Slice, prefill_plan

CONFIG = tiny()
BLOCK = CACHE_BLOCK_TOKENS


def request(index: int, prompt: int, output: int, **fields) -> Request:
    """A request whose tokens nobody else has."""
    params = SamplingParams(max_tokens=output, ignore_eos=True)
    return Request(index, [3 + index] * prompt, params, **fields)


class Machine:
    """Runs a scheduler's steps with invented tokens, and checks each of them."""

    def __init__(self, **options) -> None:
        self.sizes = EngineConfig.of(CONFIG, **options)
        self.scheduler = Ranks(self.sizes)
        self.rows = 0  # computed by prefill steps
        self.finished: list[int] = []

    def run(self, before_step: Callable[[], None] = lambda: None, limit: int = 20_000) -> int:
        """Run until all requests end; returns the number of steps."""
        steps = 0
        while self.scheduler.unfinished:
            before_step()
            self.step()
            steps += 1
            assert steps < limit, "no end in sight"
        return steps

    def step(self) -> PrefillStep | DecodeStep | None:
        scheduler = self.scheduler
        step = scheduler.next_step()
        if isinstance(step, PrefillStep):
            self._check_fits(step)
            self.rows += sum(part.count for part in step.slices)
            ending = [part.request for part in step.slices if part.last]
        else:
            ending = [one for _, one in step.rows] if step else []
            for one in ending:
                self._check_place(one)
        if step is not None:
            scheduler.dispatched(step)
        for one in ending:
            self._commit(one)
        return step

    def check_empty(self) -> None:
        assert self.scheduler.free_blocks == self.sizes.blocks
        assert self.scheduler.each[0].slots.free == self.sizes.slots
        assert (self.scheduler.waiting, self.scheduler.running) == (0, 0)

    def _check_fits(self, step: PrefillStep) -> None:
        """The model's own plan builder refuses what does not fit; last rows must have logits."""
        slices = []
        for part in step.slices:
            one = part.request
            assert one.slot is not None
            assert len(one.blocks) * BLOCK >= one.target, "a slice has no room for its keys"
            slices.append(
                Slice(
                    slot=one.slot,
                    token_ids=one.known_tokens(one.computed, one.computed + part.count),
                    start=one.computed,
                    known_length=len(one.prompt_token_ids),
                    blocks=one.blocks,
                    outputs=[part.count - 1] if part.last else [],
                )
            )
        prefill_plan(slices, self.sizes.prefill_bucket(step.rows), CONFIG, self.sizes.truncation)

    def _check_place(self, one: Request) -> None:
        slots = self.scheduler.each[0].slots
        assert slots.earliest[one.slot] == slots.latest[one.slot] == one.length - 1
        assert len(one.blocks) * BLOCK >= one.length, "a token has no room for its keys"
        assert slots.block_tables[one.slot, : len(one.blocks)].tolist() == one.blocks

    def _commit(self, one: Request) -> None:
        one.append(5, 0.0, eos_token_id=1, longest=self.sizes.max_model_len)
        if one.finished:
            self.scheduler.release(one)
            self.finished.append(one.index)


@pytest.mark.parametrize("keep_tokens", [0, 14, 50])
@pytest.mark.parametrize("blocks", [None, 6, 11])
def test_random_requests_all_end_and_nothing_leaks(keep_tokens: int, blocks: int | None) -> None:
    machine = Machine(
        max_model_len=700, prefill_rows=(64, 256), keep_tokens=keep_tokens, blocks=blocks
    )
    dice = random.Random(keep_tokens)
    requests = [
        request(i, dice.choice([1, 2, 31, 33, 90, 127, 257, 700]), dice.randint(1, 200))
        for i in range(120)
    ]
    for one in requests:
        machine.scheduler.add(one)
    machine.run()
    assert all(one.finish_reason is FinishReason.LENGTH for one in requests)
    assert all(len(one.token_ids) == one.params.max_tokens or one.length == 701 for one in requests)
    assert (machine.scheduler.preemptions > 0) == (blocks is not None)
    machine.check_empty()


def test_arrivals_and_aborts_at_any_time_leak_nothing() -> None:
    machine = Machine(max_model_len=700, prefill_rows=(64, 256), blocks=9)
    dice = random.Random(1)
    live: list[Request] = []
    waiting = [request(i % 40, dice.choice([5, 130, 300, 600]), dice.randint(1, 150))
               for i in range(400)]  # fmt: skip

    def arrive_and_abort() -> None:
        for _ in range(min(len(waiting), dice.randint(0, 2))):
            live.append(waiting.pop())
            machine.scheduler.add(live[-1])
        if live and dice.random() < 0.2:
            one = dice.choice(live)
            if not one.finished:
                one.fail(FinishReason.ABORT, "aborted")
                machine.scheduler.release(one)

    arrive_and_abort()
    while waiting:
        arrive_and_abort()
        machine.step()
    machine.run(arrive_and_abort)
    assert all(one.finished for one in live)
    assert machine.scheduler.preemptions > 0
    machine.check_empty()


def test_a_pool_of_one_and_a_half_prompts_ends_with_two_long_requests() -> None:
    machine = Machine(max_model_len=4 * BLOCK, prefill_rows=(64,), blocks=6)
    requests = [request(index, 3 * BLOCK + 100, 150) for index in range(2)]
    for one in requests:
        machine.scheduler.add(one)
    steps = machine.run()
    assert all(one.finish_reason is FinishReason.LENGTH for one in requests)
    assert steps < 500
    machine.check_empty()


def test_growth_takes_blocks_one_by_one_and_the_longest_output_gives_way() -> None:
    machine = Machine(max_model_len=4 * BLOCK, prefill_rows=(64, 512), blocks=4)
    first, second = request(0, 100, 250), request(1, 100, 200)
    machine.scheduler.add(first)
    while first.length <= BLOCK:
        assert len(first.blocks) <= 1
        machine.step()
    machine.step()
    assert len(first.blocks) == 2
    machine.scheduler.add(second)
    while not machine.scheduler.preemptions:
        machine.step()
    assert (first.preemptions, second.preemptions) == (1, 0)
    machine.run()
    assert (first.preemptions, second.preemptions) == (1, 0)
    machine.check_empty()


def test_among_equal_outputs_the_latest_gives_way() -> None:
    machine = Machine(max_model_len=4 * BLOCK, prefill_rows=(512,), blocks=4)
    requests = [request(index, 2 * BLOCK - 5, 100) for index in range(2)]
    for one in requests:
        machine.scheduler.add(one)
    while not machine.scheduler.preemptions:
        machine.step()
    assert [one.preemptions for one in requests] == [0, 1]
    machine.run()
    assert machine.finished == [0, 1]


def test_one_failed_growth_preempts_one_request() -> None:
    """E17: the blocks of the first victim are enough, so nobody else loses its place."""
    machine = Machine(max_model_len=4 * BLOCK, prefill_rows=(512,), blocks=8)
    requests = [request(index, 2 * BLOCK - 3 * index, 2 * BLOCK - 20) for index in range(4)]
    for one in requests:
        machine.scheduler.add(one)
    while not machine.scheduler.preemptions:
        machine.step()
    assert sum(one.preemptions for one in requests) == 1
    assert sum(one.slot is not None for one in requests) >= 2
    machine.run()
    machine.check_empty()


def test_a_resumed_request_finds_its_blocks_again() -> None:
    """E18: two requests of three blocks and growth in seven; the victim is not computed anew."""
    machine = Machine(max_model_len=5 * BLOCK, prefill_rows=(512,), blocks=7)
    requests = [request(index, 3 * BLOCK, 150) for index in range(2)]
    for one in requests:
        machine.scheduler.add(one)
    machine.run()
    resumed = [one for one in requests if one.preemptions]
    assert resumed
    assert all(one.stored_tokens > 0 and one.cached_tokens > 0 for one in resumed)
    machine.check_empty()


def test_prompts_in_slices_take_no_blocks_for_drafts() -> None:
    """E23: a prompt holds the blocks of its tokens, nothing ahead, until it decodes."""
    machine = Machine(max_model_len=700, prefill_rows=(64,))
    one = request(0, 5 * BLOCK, 3)
    machine.scheduler.add(one)
    for _ in range(9):
        assert isinstance(machine.step(), PrefillStep)
        assert len(one.blocks) == 5
    machine.step()
    machine.step()
    assert len(one.blocks) == 6


def test_priority_goes_before_arrival_and_arrival_decides_among_equals() -> None:
    machine = Machine(max_model_len=700, prefill_rows=(32,))
    for index, priority in enumerate([1, 0, 1, -5, 0]):
        machine.scheduler.add(request(index, 30, 1, priority=priority))
    machine.run()
    assert machine.finished == [3, 1, 4, 0, 2]


def test_decoding_goes_on_while_prompts_are_computed() -> None:
    machine = Machine(max_model_len=700, prefill_rows=(64,))
    machine.scheduler.add(request(0, 10, 50))
    machine.step()
    machine.scheduler.add(request(1, 640, 1))
    kinds = [type(machine.step()).__name__ for _ in range(12)]
    assert kinds == ["DecodeStep", "PrefillStep"] * 6


def test_a_deadline_names_each_late_request_once() -> None:
    machine = Machine(max_model_len=700)
    late, soon, never = (request(i, 5, 1, deadline=at) for i, at in enumerate([9.0, 5.0, None]))
    for one in (late, soon, never):
        machine.scheduler.add(one)
    assert machine.scheduler.expired(4.0) == []
    assert machine.scheduler.expired(6.0) == [soon]
    machine.scheduler.release(soon)
    machine.scheduler.release(late)
    assert machine.scheduler.expired(20.0) == []


def test_prompts_share_a_step_and_the_smallest_bucket_that_fits() -> None:
    machine = Machine(max_model_len=700, prefill_rows=(64, 256))
    for index, length in enumerate([20, 20]):
        machine.scheduler.add(request(index, length, 4))
    step = machine.step()
    assert isinstance(step, PrefillStep)
    assert (step.rows, [part.count for part in step.slices]) == (64, [20, 20])

    machine = Machine(max_model_len=700, prefill_rows=(64, 256))
    for index, length in enumerate([20, 600, 20]):
        machine.scheduler.add(request(index, length, 4))
    step = machine.step()
    assert isinstance(step, PrefillStep)
    assert step.rows == 256
    assert [part.count for part in step.slices] == [20, 256 - PREFILL_TILE_ROWS]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"slots": 9}, "slots is 9; it must be a positive multiple of 8"),
        ({"slots": 0}, "slots is 0; it must be a positive multiple of 8"),
        ({"max_model_len": 0}, "max_model_len is 0; it must be from 1 to 4096"),
        ({"max_model_len": 5000}, "max_model_len is 5000; it must be from 1 to 4096"),
        ({"prefill_rows": (100,)}, "prefill_rows has 100; each must be a positive multiple of 32"),
        ({"prefill_rows": ()}, "prefill_rows is empty; name at least one row count"),
        ({"keep_tokens": 13}, "keep_tokens is 13; with a window of 8 and a rollback of 6 it must"),
        ({"blocks": 31}, "blocks is 31; one sequence of 4096 tokens needs 32"),
        ({"prefix_cache": "on"}, "prefix_cache is 'on'; it must be one of off, exact, bounded"),
        ({"prefix_cache": "bounded"}, "prefix_cache is 'bounded', but keep_tokens is 0; give"),
        ({"drafter": "guess"}, "drafter is 'guess'; it must be one of off, lookup, dspark"),
        ({"draft_tokens": 9}, "draft_tokens is 9; it must be from 1 to 8"),
        ({"draft_lengths": "any"}, "draft_lengths is 'any'; it must be one of fixed, variable"),
        ({"draft_lengths": "variable"}, "draft_lengths is 'variable', but drafter is 'off'; name"),
        (
            {"decode_rows": (12,)},
            "decode_rows has 12; each must be a multiple of 8 from 8 to below",
        ),
        (
            {"decode_rows": (48,)},
            "decode_rows has 48; each must be a multiple of 8 from 8 to below",
        ),
        ({"confidence_temperatures": (1, 2)}, "confidence_temperatures is (1, 2); it must be one"),
        ({"confidence_temperatures": (0,)}, "confidence_temperatures is (0,); it must be one"),
    ],
)
def test_sizes_are_refused_in_one_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        EngineConfig.of(CONFIG, **options)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_the_decode_programs_of_variable_lengths() -> None:
    sizes = EngineConfig.of(
        CONFIG, drafter="lookup", draft_tokens=7, draft_lengths="variable",
        confidence_temperatures=(1e-9,),
    )  # fmt: skip
    forms = sizes.decode_forms
    assert [form.rows for form in forms] == [8, 8, 16, 24, 32, 40, 48, 56, 64]
    assert [form.drafts for form in forms] == [False] + [True] * 8
    assert [form.ragged for form in forms] == [False] + [True] * 7 + [False]
    assert sizes.decode_bucket(forms[0]).tile_rows == sizes.decode_bucket(forms[1]).tile_rows == 1
    assert sizes.decode_bucket(forms[-1]).tile_rows == 8
    assert sizes.rollback == 8
    assert sizes.confidence_temperatures == (1e-5,) * 7
    assert len(replace(sizes, draft_lengths="fixed").decode_forms) == 1


def test_few_drafts_leave_the_caches_as_they_are() -> None:
    for options in ({}, {"drafter": "lookup"}, {"drafter": "lookup", "draft_tokens": 1}):
        assert EngineConfig.of(CONFIG, **options).rollback == 6
