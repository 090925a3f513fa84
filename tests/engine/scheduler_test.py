"""Choosing steps, on the host alone: everybody ends, nothing leaks, every step fits its bucket."""

import random

import pytest

from dsinfer_jax.config import tiny
from dsinfer_jax.engine.blocks import BlockPool
from dsinfer_jax.engine.engine_config import PREFILL_TILE_ROWS, EngineConfig
from dsinfer_jax.engine.request import FinishReason, Request, SamplingParams
from dsinfer_jax.engine.scheduler import PrefillStep, Scheduler
from dsinfer_jax.model.plan import Slice, prefill_plan

CONFIG = tiny()


def request(index: int, prompt: int, output: int) -> Request:
    return Request(index, [3] * prompt, SamplingParams(max_tokens=output))


def check_fits(step: PrefillStep, sizes: EngineConfig) -> None:
    """The model's own plan builder refuses what does not fit; the last row must have logits."""
    slices = [
        Slice(
            slot=part.request.slot or 0,
            token_ids=part.request.prompt_token_ids[: part.count],
            start=part.request.computed,
            known_length=len(part.request.prompt_token_ids),
            blocks=part.request.blocks,
            outputs=[part.count - 1] if part.last else [],
        )
        for part in step.slices
    ]
    prefill_plan(slices, sizes.prefill_bucket(step.rows), CONFIG, sizes.truncation)


def run_all(scheduler: Scheduler, sizes: EngineConfig) -> int:
    """Run steps with invented tokens until all requests end; returns the number of steps."""
    steps = 0
    while scheduler.unfinished:
        steps += 1
        assert steps < 10_000, "no end in sight"
        prefill = scheduler.next_prefill()
        if prefill is not None:
            check_fits(prefill, sizes)
            for part in prefill.slices:
                last = part.last
                scheduler.computed(part)
                if last:
                    commit(scheduler, part.request, sizes)
            continue
        for _, running in scheduler.slots.decoding:
            assert scheduler.slots.start[running.slot] == running.length - 1
            commit(scheduler, running, sizes)
    return steps


def commit(scheduler: Scheduler, running: Request, sizes: EngineConfig) -> None:
    started = bool(running.token_ids)
    running.append(5, 0.0, eos_token_id=1, longest=sizes.max_model_len)
    if running.finished:
        scheduler.release(running)
    elif started:
        scheduler.slots.advance(running)
    else:
        scheduler.slots.begin(running)


@pytest.mark.parametrize("keep_tokens", [0, 14, 50])
@pytest.mark.parametrize("blocks", [None, 6])
def test_random_requests_all_end_and_nothing_leaks(keep_tokens: int, blocks: int | None) -> None:
    sizes = EngineConfig.of(
        CONFIG, max_model_len=700, prefill_rows=(64, 256), keep_tokens=keep_tokens, blocks=blocks
    )
    dice = random.Random(keep_tokens)
    scheduler = Scheduler(sizes)
    total = scheduler.free_blocks
    requests = [request(i, dice.choice([1, 2, 31, 32, 33, 90, 257, 700]), dice.randint(1, 40))
                for i in range(120)]  # fmt: skip
    for one in requests:
        scheduler.add(one)
    run_all(scheduler, sizes)
    assert all(one.finish_reason is FinishReason.LENGTH for one in requests)
    assert all(len(one.token_ids) == one.params.max_tokens or one.length == 701 for one in requests)
    assert scheduler.free_blocks == total
    assert scheduler.slots.free == sizes.slots


def test_prompts_share_a_step_and_the_smallest_bucket_that_fits() -> None:
    sizes = EngineConfig.of(CONFIG, max_model_len=700, prefill_rows=(64, 256))
    scheduler = Scheduler(sizes)
    for index, length in enumerate([20, 20]):
        scheduler.add(request(index, length, 4))
    step = scheduler.next_prefill()
    assert step is not None
    assert (step.rows, [part.count for part in step.slices]) == (64, [20, 20])

    scheduler = Scheduler(sizes)
    for index, length in enumerate([20, 600, 20]):
        scheduler.add(request(index, length, 4))
    step = scheduler.next_prefill()
    assert step is not None
    assert step.rows == 256
    assert [part.count for part in step.slices] == [20, 256 - PREFILL_TILE_ROWS]


def test_an_aborted_request_frees_its_place_wherever_it_is() -> None:
    sizes = EngineConfig.of(CONFIG, max_model_len=700, prefill_rows=(64,))
    scheduler = Scheduler(sizes)
    total = scheduler.free_blocks
    requests = [request(index, 300, 4) for index in range(10)]
    for one in requests:
        scheduler.add(one)
    step = scheduler.next_prefill()
    assert step is not None
    for part in step.slices:
        scheduler.computed(part)
    for one in requests:
        scheduler.release(one)
    assert not scheduler.unfinished
    assert (scheduler.free_blocks, scheduler.slots.free) == (total, 8)


def test_a_block_cannot_be_given_back_twice() -> None:
    pool = BlockPool(3)
    assert pool.take(4) is None
    taken = pool.take(2)
    assert taken == [0, 1]
    pool.give_back(taken)
    assert pool.free == 3
    with pytest.raises(AssertionError, match="block 0"):
        pool.give_back([0])


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
    ],
)
def test_sizes_are_refused_in_one_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        EngineConfig.of(CONFIG, **options)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)
