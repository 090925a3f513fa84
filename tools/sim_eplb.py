"""Simulate expert balancing: how even are the ranks, with the published policy and with ours?

    python tools/sim_eplb.py                                  # 64 and 128 ranks, both phases
    python tools/sim_eplb.py --phase decode --ranks 64 --skew 1.5
    python tools/sim_eplb.py --trace routing.npz --ranks 64   # routing recorded from a model

Printed is moe_lb: tokens of the busiest rank over those of the mean rank, summed over steps and
layers (1 is perfect), after the first rearrangement, which comes after a quarter of an interval.
Each row goes to a copy of its expert at random with the shares of the copies, as the hash of a row
does. Traces and their format are described in docs/expert_balance.md.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path

import expert_traces
import numpy as np
from expert_traces import Counts, Traffic
from numpy.typing import NDArray

from dsinfer_jax.mesh import expert_balance
from dsinfer_jax.mesh.expert_balance import BalanceSettings, ExpertBalancer
from dsinfer_jax.mesh.expert_loads import moe_lb
from dsinfer_jax.mesh.expert_placement import Placement, PlaceSizes, first_placement
from dsinfer_jax.mesh.expert_policy import balanced_placement, reference_placement

Policy = Callable[[NDArray[np.generic], PlaceSizes], Placement]
PHASES: dict[str, tuple[Traffic, BalanceSettings]] = {
    "prefill": (expert_traces.PREFILL, expert_balance.PREFILL),
    "decode": (expert_traces.DECODE, expert_balance.DECODE),
}


@dataclass
class Score:
    """Sums of the metric, before and after the first rearrangement.

    Attributes:
        busiest, mean: tokens of the busiest and the mean rank, [before, after].
        moves: weights that moved, one number for each rearrangement.
        seconds: time spent deciding.
    """

    busiest: NDArray[np.float64]
    mean: NDArray[np.float64]
    moves: list[int]
    seconds: float

    @property
    def metric(self) -> float:
        """moe_lb after the first rearrangement."""
        return float(self.busiest[1] / max(1.0, self.mean[1]))


def simulate(trace: Iterator[Counts], balancer: ExpertBalancer, seed: int) -> Score:
    """Serve a trace with a balancer."""
    random = np.random.default_rng(seed)
    score = Score(np.zeros(2), np.zeros(2), [], 0.0)
    waiting: list[Counts] = []  # steps under the present placement
    placement = balancer.placement

    def settle() -> None:
        if waiting:
            loads = sampled_rank_loads(np.stack(waiting), placement, random)
            after = 1 if score.moves else 0
            score.busiest[after] += loads.max(axis=2).sum()
            score.mean[after] += loads.mean(axis=2).sum()
            waiting.clear()

    for counts in trace:
        waiting.append(counts)
        start = time.process_time()
        change = balancer.record(counts)
        score.seconds += time.process_time() - start
        if change is not None:
            settle()
            placement = change.placement
            if change.moves is not None:
                score.moves.append(change.moves.transfers)
    settle()
    return score


def sampled_rank_loads(
    counts: NDArray[np.int64], placement: Placement, random: np.random.Generator
) -> NDArray[np.float64]:
    """[steps, layers, ranks] tokens, each row at a copy drawn by the shares."""
    shares = placement.shares()
    loads = np.zeros((*counts.shape[:2], placement.sizes.ranks))
    for layer, by_expert in enumerate(shares):
        whole = by_expert == 1
        loads[:, layer] = counts[:, layer].astype(np.float64) @ whole
        for expert in np.flatnonzero(~whole.any(axis=1)):
            ranks = np.flatnonzero(by_expert[expert])
            portions = by_expert[expert, ranks] / by_expert[expert, ranks].sum()
            loads[:, layer, ranks] += random.multinomial(counts[:, layer, expert], portions)
    return loads


@dataclass(frozen=True)
class Scenario:
    """A trace, and the devices that serve it.

    Attributes:
        name: for the table.
        trace: makes it anew for every policy.
    """

    name: str
    trace: Callable[[], Iterator[Counts]]
    layers: int
    experts: int
    ranks: int
    settings: BalanceSettings
    seed: int

    @property
    def sizes(self) -> PlaceSizes:
        requested = self.settings.redundant_per_rank * self.ranks
        return PlaceSizes.of(self.experts, requested, self.ranks)

    def unbalanced(self) -> float:
        """moe_lb of the first window under the first placement."""
        counts = np.stack(list(islice(self.trace(), self.settings.window)))
        placement = first_placement(self.sizes, self.layers)
        loads = sampled_rank_loads(counts, placement, np.random.default_rng(self.seed))
        return moe_lb(loads)

    def serve(self, policy: Policy | None, tune: bool) -> Score:
        """The trace with a policy; None: ours."""
        settings = replace(self.settings, tune=tune)
        balancer = ExpertBalancer(self.layers, self.experts, self.ranks, settings, policy)
        return simulate(self.trace(), balancer, self.seed)


def row(scenario: Scenario) -> tuple[str, bool]:
    """A line of the table, and whether ours is at least as good as the reference."""
    reference = scenario.serve(reference_placement, tune=False)
    fixed = scenario.serve(balanced_placement, tune=False)
    ours = scenario.serve(None, tune=True)
    moved = np.mean(ours.moves[1:] or ours.moves or [0])
    share = moved / (scenario.sizes.places * scenario.layers)
    line = (
        f"{scenario.name:24} {scenario.sizes.places:6} {scenario.unbalanced():7.3f} "
        f"{reference.metric:9.4f} {ours.metric:7.4f} {fixed.metric:12.4f} {share:6.0%} "
        f"{ours.seconds / scenario.layers:6.2f} s"
    )
    return line, ours.metric <= reference.metric


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--phase", choices=[*PHASES], nargs="+", default=[*PHASES])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--layers", type=int, default=2, help="layers of a synthetic trace")
    parser.add_argument("--experts", type=int, default=384)
    parser.add_argument("--experts-per-token", type=int, default=6)
    parser.add_argument(
        "--skew", type=float, nargs="+", default=[0.5, 1.0],
        help="standard deviation of the experts' log popularity, one trace for each",
    )  # fmt: skip
    parser.add_argument("--trace", type=Path, help="a recording (.npz) instead of synthetic loads")
    parser.add_argument("--intervals", type=float, default=2.25, help="length of a trace")
    parser.add_argument("--rows", type=int, help="rows of a rank in a step")
    parser.add_argument("--requests", type=int, help="requests of a rank in a step")
    parser.add_argument("--redundant", type=int, help="redundant places of a rank")
    parser.add_argument("--window", type=int)
    parser.add_argument("--interval", type=int)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def scenarios(options: argparse.Namespace) -> Iterator[Scenario]:
    """What the command line asks for.

    Raises:
        TraceError: the recording cannot be used.
    """
    recording = expert_traces.read_recording(options.trace) if options.trace else None
    layers = recording.layers if recording else options.layers
    experts = recording.experts if recording else options.experts
    for phase, ranks in product(options.phase, options.ranks):
        traffic, settings = PHASES[phase]
        traffic = replace(
            traffic,
            rows=either(options.rows, traffic.rows),
            requests=either(options.requests, traffic.requests),
        )
        settings = BalanceSettings(
            redundant_per_rank=either(options.redundant, settings.redundant_per_rank),
            window=either(options.window, settings.window),
            interval=either(options.interval, settings.interval),
        )
        steps = round(settings.interval * options.intervals)
        for skew in options.skew if recording is None else [0.0]:
            if recording is None:
                name = f"{phase} {ranks} skew {skew:g}"
                endless = partial(
                    expert_traces.synthetic, traffic, ranks, layers, experts,
                    options.experts_per_token, skew, options.seed,
                )  # fmt: skip
            else:
                name = f"{phase} {ranks}"
                endless = partial(expert_traces.replay, recording, traffic, ranks, options.seed)
            trace = partial(shortened, endless, steps)
            yield Scenario(name, trace, layers, experts, ranks, settings, options.seed)


def either(given: int | None, usual: int) -> int:
    """An option's value, or what is usual."""
    return usual if given is None else given


def shortened(endless: Callable[[], Iterator[Counts]], steps: int) -> Iterator[Counts]:
    return islice(endless(), steps)


def main() -> int:
    """Print the table; 0 if ours is at least as good everywhere, 1 if not, 2 for a bad file."""
    fine = True
    print(
        f"{'trace':24} {'places':>6} {'none':>7} {'reference':>9} {'ours':>7} "
        f"{'fixed shares':>12} {'moved':>6} {'decide':>8}"
    )
    try:
        for scenario in scenarios(parse()):
            line, good = row(scenario)
            print(line, flush=True)
            fine &= good
    except expert_traces.TraceError as error:
        print(f"sim_eplb: {error}", file=sys.stderr)
        return 2
    print("moved: share of places whose weights move in a rearrangement after the first")
    print("decide: processor time for all decisions of a trace, per layer")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
