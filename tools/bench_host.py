"""Host time of the engine: what scheduling costs, and what asynchronous steps hide of it.

The device is replaced by a clock: steps run one after another, each as long as it is told, and
reading a step's tokens waits for its end, as with an accelerator. What is measured is the host.

    python tools/bench_host.py [--requests 256] [--step-ms 10] [--steps 300]

Prints, for asynchronous and synchronous steps: host time per step by part, tokens per second, and
the ratio of both. A second comparison adds host work until it is a fifth of a synchronous step.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsinfer_jax.config import ModelConfig, tiny
from dsinfer_jax.engine.devices import OneDevice
from dsinfer_jax.engine.engine_config import DecodeForm, EngineConfig
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.packing import Packing
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.steps import DecodeInputs, Outcome, outcome_packing
from dsinfer_jax.model.numerics import EXACT

PROMPT = 100


class LateOutcome:
    """The outcome of a step that ends at a time: reading it waits until then."""

    def __init__(self, rows: int, slots: int, experts: tuple[int, int], end: float) -> None:
        self._rows, self._slots, self._experts, self.end = rows, slots, experts, end

    @property
    def ready(self) -> bool:
        return time.perf_counter() >= self.end

    def wait(self) -> None:
        while time.perf_counter() < self.end:
            pass  # a sleep would overshoot

    def read(self) -> Outcome:
        """One token for each row."""
        self.wait()
        packing = outcome_packing(self._rows, self._slots, 0, self._experts)
        outcome: Outcome = packing.unpack_host(np.zeros(packing.size, np.int32))
        return replace(outcome, emitted=np.ones(self._slots, np.int32))


class ClockPrograms:
    """Programs that do the host's share of a step; the device is the time at which it is free."""

    report: Sequence[Any] = ()
    seconds = 0.0

    def __init__(
        self, config: ModelConfig, sizes: EngineConfig, step_seconds: float, work_seconds: float
    ) -> None:
        self._config, self._sizes = config, sizes
        self.devices = OneDevice(config, sizes, EXACT)
        self._step, self._work = step_seconds, work_seconds
        self._free_at = 0.0
        self._experts = config.num_hidden_layers, config.n_routed_experts
        self._packing: Packing | None = None
        self.host_seconds = 0.0  # of packing inputs

    def wanted_rows(self, rows: int, slots: Sequence[int]) -> list[int]:
        return list(range(len(slots)))

    def sample_rows(self, rows: int) -> int:
        return self._sizes.prefill_bucket(rows).outputs

    def prefill(self, params: Any, cache: Any, rows: int, *_: Any) -> tuple[Any, Any]:
        return cache, LateOutcome(self.sample_rows(rows), self._sizes.slots, self._experts, 0.0)

    def begin(self, request: Request, slot: int) -> None:
        pass

    def decode(
        self, params: Any, cache: Any, form: DecodeForm, inputs: DecodeInputs, *_: Any
    ) -> tuple[Any, Any]:
        begin = time.perf_counter()
        self._packing = self._packing or Packing(inputs)
        self._packing.pack(inputs)
        self.host_seconds += time.perf_counter() - begin
        begin = time.perf_counter()
        while time.perf_counter() - begin < self._work:
            pass  # host work that a real server has: grammars, text, sockets
        self._free_at = max(self._free_at, time.perf_counter()) + self._step
        return cache, LateOutcome(
            self._sizes.slots, self._sizes.slots, self._experts, self._free_at
        )


@dataclass(frozen=True)
class Result:
    """Per decode step, in milliseconds, and tokens per second."""

    choose: float
    pack: float
    commit: float
    step: float
    tokens_per_second: float


class TimedEngine(LLMEngine):
    """An engine that counts the time of its parts."""

    choose_seconds = 0.0

    def time_choice(self) -> None:
        scheduler = self._scheduler
        inner = {name: getattr(scheduler, name) for name in ("next_step", "dispatched")}

        def timed(name: str) -> Any:
            def call(*arguments: Any) -> Any:
                begin = time.perf_counter()
                result = inner[name](*arguments)
                self.choose_seconds += time.perf_counter() - begin
                return result

            return call

        for name in inner:
            setattr(scheduler, name, timed(name))


def measure(
    requests: int, steps: int, step_seconds: float, work_seconds: float, asynchronous: bool
) -> Result:
    """Decode with all slots full for so many steps, after every prompt is done."""
    config = tiny()
    sizes = EngineConfig.of(
        config, slots=requests, max_model_len=2048, prefill_rows=(4096,), asynchronous=asynchronous
    )
    programs = ClockPrograms(config, sizes, step_seconds, work_seconds)
    arguments: Any = (config, {"none": np.zeros(1)}, EXACT, sizes, None, programs)
    engine = TimedEngine(*arguments)
    params = SamplingParams(max_tokens=1900, ignore_eos=True, temperature=0)
    for index in range(requests):
        engine.add_request(Request(index, [3 + index] * PROMPT, params, seed=0))
    while len(engine._scheduler.each[0].slots.decoding) < requests:
        engine.step()
    engine.flush()
    engine.time_choice()
    programs.host_seconds = 0.0
    device = 0.0
    begin, tokens = time.perf_counter(), 0
    commit = 0.0
    original = engine._commit

    def timed_commit(flight: Any) -> Any:
        nonlocal commit, device
        waiting = time.perf_counter()
        flight.handle.wait()
        start = time.perf_counter()
        device += start - waiting
        result = original(flight)
        commit += time.perf_counter() - start
        return result

    engine._commit = timed_commit  # type: ignore[method-assign]
    for _ in range(steps):
        tokens += len(engine.step())
    seconds = time.perf_counter() - begin
    per_step = 1e3 / steps
    return Result(
        engine.choose_seconds * per_step,
        programs.host_seconds * per_step,
        commit * per_step,
        seconds * per_step,
        tokens / seconds,
    )


def show(title: str, result: Result) -> None:
    print(
        f"{title:34} choose {result.choose:6.3f} ms, pack {result.pack:6.3f} ms, "
        f"commit {result.commit:6.3f} ms, step {result.step:7.3f} ms, "
        f"{result.tokens_per_second:9.0f} tokens/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=300)
    chosen = parser.parse_args()
    step = chosen.step_ms / 1e3
    print(f"{chosen.requests} requests decode; a device step takes {chosen.step_ms} ms")
    plain = {}
    for asynchronous in (False, True):
        plain[asynchronous] = measure(chosen.requests, chosen.steps, step, 0.0, asynchronous)
        show("asynchronous" if asynchronous else "synchronous", plain[asynchronous])
    share = plain[True].choose / chosen.step_ms
    print(f"choosing steps is {share:.1%} of a device step")
    own = (plain[False].choose + plain[False].pack + plain[False].commit) / 1e3
    work = max(step / 4 - own, 0.0)  # host : device = 1 : 4, a fifth of the whole
    speeds = {}
    for asynchronous in (False, True):
        result = measure(chosen.requests, chosen.steps, step, work, asynchronous)
        kind = "asynchronous" if asynchronous else "synchronous"
        show(f"  + host work of {work * 1e3:.1f} ms, {kind}", result)
        speeds[asynchronous] = result.tokens_per_second
    print(f"asynchronous is {speeds[True] / speeds[False]:.2f} x synchronous")


if __name__ == "__main__":
    main()
