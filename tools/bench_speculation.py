"""What drafts bring: fixed lengths 0, 1, 3, 5 and variable ones, at several loads, in one run.

    python tools/bench_speculation.py --simulate               # the demo model, an invented clock
    python tools/bench_speculation.py --measure --slots 16     # this machine
    python tools/bench_speculation.py --simulate --plot gain.svg --json gain.json

`--simulate` records what the draft block proposes after every token of greedy answers, and replays
them as requests of one rank, with a step that costs what a curve says: `published` grows with the
rows as the published effects of variable lengths imply (a step of no rows, and as much again for
every 700 rows), or the seconds by rows of a JSON file. The engine's own policy chooses lengths; it
sees confidences two steps late.

`--measure` runs the engine itself: tokens per second of whole answers, the median of several runs.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from demo_training import data
from demo_training.evaluate import items
from draft_blocks import Blocks, record_blocks

from dsinfer_jax.engine.draft_lengths import split, survival
from dsinfer_jax.engine.engine_config import DecodeForm
from dsinfer_jax.engine.length_policy import LengthPolicy
from dsinfer_jax.engine.llm import LLM, load_model
from dsinfer_jax.engine.sampling_params import SamplingParams

LOADS = (1, 16, 60, 96)
FIXED = (0, 1, 3, 5)
PLACES = 5
VARIABLE = "variable"
TASKS = ("small_talk", "arithmetic", "copying", "lookup", "units", "dates", "tool_calls", "mixed")
_ROWS_THAT_DOUBLE = 700  # see the documentation of the module
_STEP = 8  # between the sizes of programs
_SKIPPED, _COUNTED = 200, 3000  # steps of a simulation
Curve = Callable[[int], float]


@dataclass(frozen=True)
class Result:
    """One load with one way of choosing lengths.

    Attributes:
        throughput: tokens per second of all requests.
        accepted: tokens of a request's step, the bonus included.
        verified: drafts of a request's step.
    """

    throughput: float
    accepted: float = 0.0
    verified: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--curve", default="published", help="or a JSON file of seconds by rows")
    parser.add_argument("--items", type=int, default=12, help="of each task")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--slots", type=int, default=96, help="of the measured engine")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--plot", type=Path, help="draw the results into this file")
    options = parser.parse_args()
    renderer = data.renderer()
    prompts = [renderer.prompt(item) for task in TASKS for item in items(task, options.items)]
    results: dict[str, dict[str, dict[str, Result]]] = {}
    if options.simulate:
        llm = LLM(*load_model(options.model), drafter="dspark", max_model_len=2048)
        blocks = list(record_blocks(llm, prompts, options.max_tokens))
        results["simulated"] = simulated(blocks, curve_of(options.curve))
    if options.measure:
        results["measured"] = measured(options, prompts)
    for name, found in results.items():
        print(f"{name}:")
        print_table(found)
    if options.json:
        content = {
            name: {load: {way: vars(one) for way, one in ways.items()}
                   for load, ways in found.items()}
            for name, found in results.items()
        }  # fmt: skip
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot:
        draw(results, options.plot)


def curve_of(name: str) -> Curve:
    """Seconds of a step by its rows."""
    if name == "published":
        return lambda rows: 0.01 * (1 + -(-rows // _STEP) * _STEP / _ROWS_THAT_DOUBLE)
    stored = {int(rows): seconds for rows, seconds in json.loads(Path(name).read_text()).items()}
    return lambda rows: stored[min(size for size in stored if size >= rows)]


def simulated(blocks: Sequence[Blocks], curve: Curve) -> dict[str, dict[str, Result]]:
    """Every load with every way of choosing lengths."""
    results: dict[str, dict[str, Result]] = {}
    for load in LOADS:
        ways = {str(length): Replay(blocks, load).fixed(length, curve) for length in FIXED}
        ways[VARIABLE] = Replay(blocks, load).variable(curve)
        results[str(load)] = ways
    return results


class CurveCosts:
    """A curve as what programs cost; one that is not ragged costs what the running slots need."""

    def __init__(self, curve: Curve, slots: int) -> None:
        self._curve, self._slots = curve, slots

    def seconds(self, form: DecodeForm, running: int) -> float:
        return self._curve(form.rows if form.ragged else form.rows * running // self._slots)

    def observe(self, form: DecodeForm, running: int, seconds: float) -> None:
        """A curve does not change."""


class Replay:
    """Recorded answers as requests, each beginning the next answer when one ends."""

    def __init__(self, blocks: Sequence[Blocks], load: int) -> None:
        self._blocks = [one for one in blocks if len(one.accepted)]
        self._next = load
        self._answer = np.arange(load) % len(self._blocks)
        random = np.random.default_rng(0)
        self._place = np.array([
            random.integers(len(self._blocks[answer].accepted)) for answer in self._answer
        ])  # fmt: skip
        self.load = load

    @property
    def confidences(self) -> np.ndarray:
        """[requests, places] float32, of the drafts at hand."""
        return np.stack([
            self._blocks[answer].confidences[place]
            for answer, place in zip(self._answer, self._place)
        ])  # fmt: skip

    def advance(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Verify so many drafts of each request; returns how many stayed, and who began anew."""
        stay = np.array([
            self._blocks[answer].accepted[place]
            for answer, place in zip(self._answer, self._place)
        ])  # fmt: skip
        stay = np.minimum(stay, lengths)
        self._place += stay + 1
        begun = np.zeros(self.load, bool)
        for request in range(self.load):
            if self._place[request] >= len(self._blocks[self._answer[request]].accepted):
                self._answer[request] = self._next % len(self._blocks)
                self._next += 1
                self._place[request], begun[request] = 0, True
        return stay, begun

    def fixed(self, length: int, curve: Curve) -> Result:
        """Every step verifies the same number of drafts."""
        seconds = curve(self.load * (1 + length))
        tokens, steps = 0, _COUNTED
        for _ in range(steps):
            stay, _ = self.advance(np.full(self.load, length))
            tokens += int(stay.sum()) + self.load
        return Result(tokens / (steps * seconds), tokens / (steps * self.load), length)

    def variable(self, curve: Curve) -> Result:
        """The engine's policy chooses."""
        slots = max(LOADS)
        sizes = range(_STEP, slots * (PLACES + 1), _STEP)
        forms = [
            DecodeForm(slots, drafts=False, ragged=False),
            *(DecodeForm(rows, drafts=True, ragged=True) for rows in sizes),
            DecodeForm(slots * (PLACES + 1), drafts=True, ragged=False),
        ]
        policy = LengthPolicy(forms, slots, PLACES, CurveCosts(curve, slots))
        running, limits = np.arange(self.load), np.full(self.load, PLACES)
        made = np.zeros((slots, PLACES), np.float32)
        for slot in running.tolist():
            policy.begin(slot)
        made[: self.load] = self.confidences
        drafted, tokens, drafts, seconds = True, 0, 0, 0.0
        for step in range(_SKIPPED + _COUNTED):
            choice = policy.choose(running, limits, made)
            lengths = np.zeros(self.load, np.int64)
            if drafted and choice.form.drafts:
                lengths = limits
                if choice.form.ragged:
                    lengths = split(survival(made[: self.load]), choice.budget)
            stay, begun = self.advance(lengths)
            policy.read(choice, made.copy(), running, lengths, stay)
            for slot in np.flatnonzero(begun).tolist():
                policy.begin(slot)
            drafted = choice.form.drafts
            made[: self.load] = self.confidences if drafted else 0.0
            if step >= _SKIPPED:
                rows = self.load + int(lengths.sum())
                tokens += int(stay.sum()) + self.load
                drafts += int(lengths.sum())
                seconds += curve(rows)
        each = _COUNTED * self.load
        return Result(tokens / seconds, tokens / each, drafts / each)


def measured(
    options: argparse.Namespace, prompts: Sequence[Sequence[int]]
) -> dict[str, dict[str, Result]]:
    """Tokens per second of the engine on this machine."""
    loads = [load for load in LOADS if load <= options.slots]
    results: dict[str, dict[str, Result]] = {str(load): {} for load in loads}
    model = load_model(options.model)
    for way in (*map(str, FIXED), VARIABLE):
        how: dict[str, Any] = {"drafter": "off"}
        if way != "0":
            how = {"drafter": "dspark", "draft_tokens": PLACES if way == VARIABLE else int(way)}
            how["draft_lengths"] = VARIABLE if way == VARIABLE else "fixed"
        llm = LLM(*model, slots=options.slots, max_model_len=1024, **how)
        for load in loads:
            chosen = [prompts[place % len(prompts)] for place in range(load)]
            params = SamplingParams(max_tokens=options.max_tokens, temperature=0, ignore_eos=True)
            llm.generate(chosen, SamplingParams(max_tokens=1))  # prompts are cached from here on
            rates = []
            for _ in range(options.repetitions):
                start = time.perf_counter()
                outputs = llm.generate(chosen, params)
                tokens = sum(len(output.token_ids) for output in outputs)
                rates.append(tokens / (time.perf_counter() - start))
            steps = sum(len(output.token_ids) - output.accepted_tokens for output in outputs)
            verified = sum(output.drafted_tokens for output in outputs)
            results[str(load)][way] = Result(median(rates), tokens / steps, verified / steps)
        llm.close()
    return results


def print_table(results: dict[str, dict[str, Result]]) -> None:
    """Throughput over that of five fixed drafts, tokens and drafts of a step."""
    print("requests  lengths    x fixed 5  tokens/s  tokens/step  verified")
    for load, ways in results.items():
        for way, one in ways.items():
            ratio = one.throughput / ways[str(PLACES)].throughput
            print(
                f"{load:>8}  {way:9}  {ratio:9.3f}  {one.throughput:8.0f}  {one.accepted:11.2f}"
                f"  {one.verified:8.2f}"
            )


def draw(results: dict[str, dict[str, dict[str, Result]]], path: Path) -> None:
    """Throughput over that of five fixed drafts, by load."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(results), 4), layout="constrained")
    for axes, (name, found) in zip(
        np.atleast_1d(figure.subplots(1, len(results))), results.items()
    ):
        loads = list(found)
        for way in next(iter(found.values())):
            ratios = [
                found[load][way].throughput / found[load][str(PLACES)].throughput for load in loads
            ]
            axes.plot(loads, ratios, marker="o", label=f"{way} drafts")
        axes.set(title=name, xlabel="requests", ylabel="tokens per second over five drafts")
        axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
