"""Ten thousand requests through the real programs and a small cache: nothing leaks, all end."""

import os
import random
from pathlib import Path

import noise_model
import pytest
from engine_support import check_empty

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.request import FinishReason, Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.structured_output import StructuredOutput

REQUESTS, AT_ONCE = 10_000, 256
PATTERN = "[a-c]{2,5}"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def child_processes() -> int:
    return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def requests(dice: random.Random):
    """Short answers: greedy, drawn, with penalties, constrained, with many lengths of prompts."""
    beginnings = [[dice.randrange(3, 500) for _ in range(280)] for _ in range(5)]
    for index in range(REQUESTS):
        shared = dice.choice(beginnings)[: dice.choice([0, 0, 60, 130, 270])]
        prompt = [*shared, *(dice.randrange(3, 500) for _ in range(dice.randint(1, 20)))]
        kind = dice.random()
        yield Request(
            index,
            prompt,
            SamplingParams(
                max_tokens=dice.choice([1, 12, 40, 80]),
                temperature=dice.choice([0.0, 0.9]),
                seed=index,
                ignore_eos=kind < 0.9,
                presence_penalty=0.5 if kind < 0.2 else 0.0,
                structured_output=StructuredOutput("regex", PATTERN) if kind > 0.97 else None,
            ),
        )


@pytest.mark.slow
def test_ten_thousand_requests_through_the_real_engine() -> None:
    pytest.importorskip("llguidance", reason="the grammar extra is not installed")
    config, params, tokenizer = noise_model.load()
    llm = LLM(
        config, params, TextCodec(tokenizer, config.bos_token_id), slots=AT_ONCE, blocks=340,
        max_model_len=500, prefill_rows=(256, 1024), drafter="lookup", draft_tokens=2,
    )  # fmt: skip
    engine, dice = llm.engine, random.Random(4)
    coming = requests(dice)
    live: dict[int, Request] = {}
    ends: dict[FinishReason, int] = dict.fromkeys(FinishReason, 0)
    most_running, early_bytes, children = 0, 0, 0
    while True:
        while len(live) < AT_ONCE + 40 and (one := next(coming, None)) is not None:
            live[one.index] = one
            assert engine.add_request(one) == []
        if not live:
            break
        if dice.random() < 0.02:
            victim = live.pop(dice.choice(list(live)))
            engine.abort_request(victim)
            ends[FinishReason.ABORT] += 1
        for delta in engine.step():
            if delta.finish_reason is not None:
                del live[delta.index]
                ends[delta.finish_reason] += 1
        most_running = max(most_running, engine._scheduler.running)
        if not early_bytes and sum(ends.values()) > REQUESTS // 5:
            early_bytes, children = resident_bytes(), child_processes()
    engine.flush()
    check_empty(engine)
    grown = resident_bytes() - early_bytes
    print(f"ends {ends}, {engine.preemptions} preemptions, grown by {grown / 1e6:.1f} MB")
    assert sum(ends.values()) == REQUESTS
    assert ends[FinishReason.ERROR] == 0
    assert most_running == AT_ONCE
    assert child_processes() <= max(children, 1)
    assert grown < 64e6
    llm.close()
    assert child_processes() == 0
