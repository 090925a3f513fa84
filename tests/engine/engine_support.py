"""Engines that share compiled programs and differ in host rules, and runs over them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.replay import Replay
from dsinfer_jax.engine.request import Request
from dsinfer_jax.model.numerics import EXACT


def engine_of(llm: LLM, prefix_cache: str = "exact", **changes: Any) -> LLMEngine:
    """A fresh engine over an LLM's programs, which are of the exact policy."""
    old = llm.engine
    replay = Replay.of(prefix_cache, old.sizes.truncation, old.config)
    sizes = replace(old.sizes, replay=replay, **changes)
    return LLMEngine(old.config, old._params, EXACT, sizes, programs=old._programs)


def run(engine: LLMEngine, requests: Iterable[Request], limit: int = 5000) -> None:
    """Run requests to their ends; what came in deltas must be what they hold."""
    requests = list(requests)
    deltas = [delta for one in requests for delta in engine.add_request(one)]
    for _ in range(limit):
        if not engine.has_unfinished_requests():
            break
        deltas += engine.step()
    for one in requests:
        tokens = [t for delta in deltas if delta.index == one.index for t in delta.token_ids]
        assert tokens == one.token_ids
        assert one.finished


def same_answer(one: Request, other: Request) -> bool:
    """Equal tokens, equal log-probabilities to the last bit."""
    return (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


def check_empty(engine: LLMEngine) -> None:
    """Nobody holds anything."""
    scheduler = engine._scheduler
    assert scheduler.free_blocks == engine.sizes.blocks
    assert scheduler.each[0].slots.free == engine.sizes.slots
