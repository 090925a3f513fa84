"""What the clock decides in one process is refused in several, or agreed."""

from types import SimpleNamespace
from typing import Any

import pytest
from host_threads import together

from dsinfer_jax.engine.async_engine import AsyncEngine
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import Delta, FinishReason, Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.mesh.hosts import Hosts

DRAWN = SamplingParams(max_tokens=4)
SEEDED = SamplingParams(max_tokens=4, seed=5)


class Pending:
    """Grammars of which some are refused; they are ready when somebody waits for them."""

    def __init__(self, refused: dict[int, str]) -> None:
        self._requests = [Request(number, [3], DRAWN) for number in range(3)]
        self._refused = refused

    def finished(self, wait: bool = False) -> list[tuple[Request, str | None]]:
        assert wait
        return [(request, self._refused.get(request.index)) for request in self._requests]


class Scheduler:
    """Takes requests."""

    def __init__(self) -> None:
        self.added: list[Request] = []

    def add(self, request: Request) -> None:
        self.added.append(request)

    def release(self, request: Request) -> None:
        pass


def engine_of(hosts: Hosts, pending: Pending | None = None) -> Any:
    """The host side of an engine: it has no programs."""
    engine: Any = object.__new__(LLMEngine)
    engine.hosts, engine._scheduler = hosts, Scheduler()
    engine._pending = pending or SimpleNamespace()
    engine.sizes = SimpleNamespace(max_model_len=100, deterministic=False)
    engine.config = SimpleNamespace(vocab_size=100)
    engine.request_stats = SimpleNamespace(end=lambda request, now: None)
    return engine


def test_requests_without_a_seed_get_the_same_everywhere() -> None:
    def work(hosts: Hosts) -> list[int]:
        engine = engine_of(hosts)
        for params in (DRAWN, SEEDED, DRAWN):
            assert engine.add_request(Request(0, [3], params)) == []
        return [request.seed for request in engine._scheduler.added]

    one, other = together(2, work)
    assert one == other
    assert one[1] == 5
    assert one[0] != one[2]


def test_deadlines_are_refused() -> None:
    def work(hosts: Hosts) -> Delta:
        return engine_of(hosts).add_request(Request(0, [3], SEEDED, deadline=1e9))[0]

    delta = together(1, work)[0]
    assert delta.finish_reason is FinishReason.ERROR
    assert delta.error.startswith("the request has a deadline, which several processes")


def test_a_grammar_that_one_process_refuses_is_refused_by_all() -> None:
    def work(hosts: Hosts) -> Any:
        refused = {1: f"too slow in {hosts.process}"} if hosts.process else {}
        engine = engine_of(hosts, Pending(refused))
        failed = engine._begin_constrained()
        added = [request.index for request in engine._scheduler.added]
        return added, [(delta.index, delta.error) for delta in failed]

    assert together(3, work) == [([0, 2], [(1, "too slow in 1")])] * 3


def test_a_server_over_several_processes_is_refused() -> None:
    llm: Any = SimpleNamespace(engine=SimpleNamespace(hosts=object()))
    with pytest.raises(ValueError, match="the model runs in several processes"):
        AsyncEngine(llm)
