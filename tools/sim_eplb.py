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
from itertools import islice
from pathlib import Path

import expert_traces
import numpy as np
from expert_traces import Counts, Traffic
from numpy.typing import NDArray

from dsinfer_jax.mesh import expert_balance
from dsinfer_jax.mesh.expert_balance import BalanceSettings, ExpertBalancer
from dsinfer_jax.mesh.expert_placement import Placement, PlaceSizes, first_placement
from dsinfer_jax.mesh.expert_policy import balanced_placement, reference_placement

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


def simulate(
    trace: Iterator[Counts],
    layers: int,
    experts: int,
    ranks: int,
    settings: BalanceSettings,
    policy: Callable[[NDArray[np.generic], PlaceSizes], Placement] | None,
    seed: int,
) -> Score:
    """Serve a trace with a policy."""
    balancer = ExpertBalancer(layers, experts, ranks, settings, policy)
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


def compare(
    make_trace: Callable[[], Iterator[Counts]],
    layers: int,
    experts: int,
    ranks: int,
    settings: BalanceSettings,
    seed: int,
) -> dict[str, Score | float]:
    """The same trace without balancing and with each policy."""
    sizes = PlaceSizes.of(experts, settings.redundant_per_rank * ranks, ranks)
    random = np.random.default_rng(seed)
    start = np.stack(list(islice(make_trace(), settings.window)))
    unbalanced = sampled_rank_loads(start, first_placement(sizes, layers), random)
    results: dict[str, Score | float] = {
        "none": float(unbalanced.max(axis=2).sum() / unbalanced.mean(axis=2).sum())
    }
    fixed = replace(settings, tune=False)
    for name, used, policy in (
        ("reference", fixed, reference_placement),
        ("fixed", fixed, balanced_placement),
        ("ours", settings, None),
    ):
        results[name] = simulate(make_trace(), layers, experts, ranks, used, policy, seed)
    return results


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


def given(values: dict[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


def main() -> int:
    options = parse()
    try:
        recording = expert_traces.read_recording(options.trace) if options.trace else None
    except expert_traces.TraceError as error:
        print(f"sim_eplb: {error}", file=sys.stderr)
        return 2
    layers = recording.layers if recording else options.layers
    experts = recording.experts if recording else options.experts
    skews = [None] if recording else options.skew
    print(
        f"{'trace':24} {'places':>6} {'none':>7} {'reference':>9} {'ours':>7} "
        f"{'fixed shares':>12} {'moved':>6} {'decide':>8}"
    )
    worse = False
    for phase in options.phase:
        traffic = replace(
            PHASES[phase][0], **given({"rows": options.rows, "requests": options.requests})
        )
        settings = replace(
            PHASES[phase][1],
            **given({"redundant_per_rank": options.redundant, "window": options.window,
                     "interval": options.interval}),
        )  # fmt: skip
        steps = round(settings.interval * options.intervals)
        for ranks in options.ranks:
            for skew in skews:

                def make_trace(
                    traffic: Traffic = traffic,
                    steps: int = steps,
                    ranks: int = ranks,
                    skew: float | None = skew,
                ) -> Iterator[Counts]:
                    if recording is not None:
                        trace = expert_traces.replay(recording, traffic, ranks, options.seed)
                    else:
                        assert skew is not None
                        trace = expert_traces.synthetic(
                            traffic, ranks, layers, experts, options.experts_per_token, skew,
                            options.seed,
                        )  # fmt: skip
                    return islice(trace, steps)

                results = compare(make_trace, layers, experts, ranks, settings, options.seed)
                reference, ours, fixed = (results[n] for n in ("reference", "ours", "fixed"))
                assert isinstance(reference, Score) and isinstance(ours, Score)
                assert isinstance(fixed, Score)
                sizes = PlaceSizes.of(experts, settings.redundant_per_rank * ranks, ranks)
                name = f"{phase} {ranks}" + ("" if skew is None else f" skew {skew:g}")
                moved = np.mean(ours.moves[1:] or ours.moves or [0]) / (sizes.places * layers)
                print(
                    f"{name:24} {sizes.places:6} {results['none']:7.3f} {reference.metric:9.4f} "
                    f"{ours.metric:7.4f} {fixed.metric:12.4f} {moved:6.0%} "
                    f"{ours.seconds / layers:6.2f} s",
                    flush=True,
                )
                worse |= ours.metric > reference.metric
    print("moved: share of places whose weights move in a rearrangement after the first")
    print("decide: time for all decisions of a trace, per layer")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
