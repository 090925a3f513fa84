"""What batch invariance costs: the same programs with and without its compiler option.

    python tools/bench_invariance.py [--numerics exact|runtime] [--repetitions 15] [--json FILE]

With the option, products always go to XLA's library of kernels and sums never do, so that a row's
bits depend on no row count (docs/batch_invariance.md). The programs are steps of 8, 64 and 512 rows
of the small configuration with the published cache formats. Both variants take turns; figures are
medians with the interquartile range. The last column says whether the same eight rows kept their
bits.
"""

import argparse
import json
import os
import platform
import statistics
import time
from typing import Any

import jax
import numpy as np

from dsinfer_jax import _jax
from dsinfer_jax.config import ModelConfig, tiny_formats
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model import init
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import POLICIES
from dsinfer_jax.model.plan import Bucket, Plan, Slice, prefill_plan

SLOTS, TABLE_WIDTH = 8, 4
ROW_COUNTS = (8, 64, 512)


def plans(config: ModelConfig) -> dict[int, Plan]:
    """The same eight rows in buckets of several sizes, with more and longer neighbours."""
    random = np.random.default_rng(0)
    first, found = list(range(3, 11)), {}
    for rows in ROW_COUNTS:
        slices = []
        for slot in range(min(rows // 8, SLOTS)):
            length = rows // min(rows // 8, SLOTS)
            others = random.integers(3, config.vocab_size, length).tolist()
            tokens = others if slot else first
            blocks = range(slot * TABLE_WIDTH, (slot + 1) * TABLE_WIDTH)
            outputs = () if slot else range(8)
            slices.append(Slice(slot, tokens, 0, len(tokens), blocks, outputs=outputs))
        bucket = Bucket(rows, SLOTS, TABLE_WIDTH, outputs=8, tile_rows=8)
        found[rows] = prefill_plan(slices, bucket, config)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numerics", choices=("exact", "runtime"), default="exact")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--json", help="write the figures to this file as well")
    arguments = parser.parse_args()
    config, numerics = tiny_formats(), POLICIES[arguments.numerics]
    params = init.init(config, seed=1)
    sizes = caches.CacheSizes(slots=SLOTS, blocks=SLOTS * TABLE_WIDTH)

    def step(params: Any, cache: Any, plan: Plan) -> Any:
        cache, result = forward(params, cache, plan, config, numerics)
        return cache, result.logits

    plain = {
        name: value
        for name, value in _jax.COMPILER_OPTIONS.items()
        if name not in _jax.INVARIANCE_OPTIONS
    }
    variants = {
        "invariant": jax.jit(step, compiler_options=_jax.COMPILER_OPTIONS),
        "plain": jax.jit(step, compiler_options=plain),
    }
    cache = caches.init(config, sizes, numerics)
    times: dict[tuple[str, int], list[float]] = {}
    logits: dict[tuple[str, int], np.ndarray] = {}
    for rows, plan in plans(config).items():
        plan = jax.device_put(plan)
        for repetition in range(arguments.repetitions + 1):
            for name, program in variants.items():
                start = time.perf_counter()
                _, found = jax.block_until_ready(program(params, cache, plan))
                if repetition:
                    elapsed = (time.perf_counter() - start) * 1e3
                    times.setdefault((name, rows), []).append(elapsed)
                logits[name, rows] = np.asarray(found)
    figures = []
    for (name, rows), values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        same = logits[name, rows].tobytes() == logits[name, ROW_COUNTS[0]].tobytes()
        figures.append(
            {"variant": name, "rows": rows, "median_ms": round(median, 2),
             "spread_ms": round(high - low, 2), "same_bits": same}
        )  # fmt: skip
        print(
            f"{rows:4d} rows  {name:10s} {median:8.2f} +- {high - low:.2f} ms  "
            f"{'same bits as 8 rows' if same else 'other bits than 8 rows'}"
        )
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    result = {"numerics": arguments.numerics, "machine": machine, "figures": figures}
    print(json.dumps(result))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
