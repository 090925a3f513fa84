"""Random requests with arrivals and aborts, each compared with the same request run alone."""

import random
from dataclasses import dataclass, field

import numpy as np
from engine_support import check_empty, run

from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import FinishReason, Request
from dsinfer_jax.engine.sampling_params import SamplingParams

BASE = np.random.default_rng(11).integers(3, 512, 400).tolist()
KINDS = [
    ([*BASE[:shared], *([5 + own] * own)], output, temperature)
    for shared in (0, 130, 270)
    for own, output, temperature in ((1, 30, 0.0), (9, 1, 1.0), (70, 190, 0.8), (3, 140, 0.0))
]


def request(kind: int, index: int) -> Request:
    tokens, output, temperature = KINDS[kind]
    params = SamplingParams(max_tokens=output, temperature=temperature, seed=kind, ignore_eos=True)
    return Request(index, tokens, params)


@dataclass
class Answers:
    """Each kind of request run alone, when it is first asked for."""

    engine: LLMEngine
    known: dict[int, Request] = field(default_factory=dict)

    def of(self, kind: int) -> Request:
        if kind not in self.known:
            self.known[kind] = request(kind, 0)
            run(self.engine, [self.known[kind]])
        return self.known[kind]

    def check(self, one: Request, kind: int) -> None:
        alone, count = self.of(kind), len(one.token_ids)
        assert one.token_ids == alone.token_ids[:count]
        assert one.logprobs == alone.logprobs[:count]
        if one.finish_reason is not FinishReason.ABORT:
            assert count == len(alone.token_ids)


def run_mix(engine: LLMEngine, answers: Answers, seed: int, count: int) -> None:
    """Random arrivals and aborts, each step."""
    dice = random.Random(seed)
    kinds = [dice.randrange(len(KINDS)) for _ in range(count)]
    coming = [request(kind, index) for index, kind in enumerate(kinds)]
    present: list[Request] = []
    while len(present) < count or engine.has_unfinished_requests():
        while len(present) < count and dice.random() < 0.4:
            present.append(coming[len(present)])
            assert engine.add_request(present[-1]) == []
        if present and dice.random() < 0.03:
            engine.abort_request(dice.choice(present))
        engine.step()
    assert engine.flush() == []
    for one, kind in zip(coming, kinds):
        answers.check(one, kind)
    check_empty(engine)
