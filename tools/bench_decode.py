"""What a decode step costs at 2 000, 20 000 and 100 000 tokens of context, part by part.

    python tools/bench_decode.py [--numerics exact|runtime] [--contexts 2000,20000] [--json FILE]

Eight slots decode one row each. Index and window shapes are the published ones (32 index heads of
128, 512 selected keys, 2048 candidate blocks of 8, a window of 128, head width 512); the rest of
the model is small, because its cost does not depend on context. Parts:

    full scan 1   reading, scoring and selecting among all keys of a ratio-1 source, with its
                  candidate blocks; the queries are made before
    full scan 2   the same for a ratio-2 source without candidates: half as many keys
    product       a plain matrix product of the queries with the keys of full scan 1, decoded before
    restricted    scores and top-k within the candidate blocks
    attention     one attention sub-layer: gather of window and selected keys, decode, attention
    step          a whole step of a four-layer model that has one of each of the above
    rest          the step without its full scans

A figure is the median over the repetitions; the spread is the interquartile range. Parts take
turns, so that a busy moment of the machine hits all of them; in its turn a part runs twice and the
second run counts, so that no part pays for what another one left in the processor's caches.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax import _jax
from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig, tiny_formats
from dsinfer_jax.kernels.index_scores import Queries
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model import init
from dsinfer_jax.model.attention import attention, low_rank_query
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.company import ALONE
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.indexer import Selection, search
from dsinfer_jax.model.numerics import POLICIES, Numerics
from dsinfer_jax.model.observe import unobserved
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Plan, RowIndex, decode_plan, row_index

SLOTS = 8
RATIO_2, SOURCE, RESTRICTED = 1, 2, 3  # layers
SCANS = ("full scan 1", "full scan 2")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
FLAT, NEAR_PRODUCT = 1.2, 2.0  # wanted ratios


def benchmark_config(candidate_blocks: int) -> ModelConfig:
    """Four layers, one of each kind, with the published index and window shapes."""
    return tiny_formats(
        num_hidden_layers=4,
        compress_ratios=[0, 2, 1, 1],
        kv_source_layer_ids=[RATIO_2, SOURCE],
        index_source_layer_ids=[RATIO_2, SOURCE, RESTRICTED],
        candidate_source_layer_id=SOURCE,
        engram_layer_ids=[1],
        index_n_heads=32,
        index_topk=512,
        candidate_topk_blocks=candidate_blocks,
        candidate_block_size=8,
        sliding_window=128,
        max_position_embeddings=1 << 20,
    )


def random_cache(config: ModelConfig, sizes: caches.CacheSizes, numerics: Numerics) -> Cache:
    """A cache with random, finite contents."""
    random = np.random.default_rng(0)

    def leaf(abstract: jax.ShapeDtypeStruct) -> jax.Array:
        if abstract.dtype == jnp.int32:
            return jnp.asarray(random.integers(3, config.vocab_size, abstract.shape, np.int32))
        if abstract.dtype == jnp.uint8:  # packed codes and exponent bytes near 1
            return jnp.asarray(random.integers(120, 130, abstract.shape, np.uint8))
        return jnp.asarray(random.standard_normal(abstract.shape, np.float32), abstract.dtype)

    return jax.tree.map(leaf, caches.abstract(config, sizes, numerics))


class Parts:
    """The compiled parts of a step, and what they are run on."""

    def __init__(self, numerics: Numerics, longest: int, candidate_blocks: int = 2048) -> None:
        self.config, self.numerics = benchmark_config(candidate_blocks), numerics
        blocks = longest // CACHE_BLOCK_TOKENS + 1
        self.table_width = 1 << (blocks - 1).bit_length()
        # all slots read the same blocks: the cost of reading is the same, and they fit in memory
        sizes = caches.CacheSizes(slots=SLOTS, blocks=self.table_width)
        self.params = init.init(self.config, seed=1)
        self.cache = random_cache(self.config, sizes, numerics)
        rows = (SLOTS, self.config.hidden_size)
        self.hidden = jax.random.normal(jax.random.key(2), rows, numerics.dtype)
        self.search = {
            layer: _jax.jit(partial(self._search, layer=layer))
            for layer in (RATIO_2, SOURCE, RESTRICTED)
        }
        self.attend = _jax.jit(self._attend)
        self.step = _jax.jit(self._step, donate=("cache",))
        self.product = _jax.jit(_product)

    def plan(self, context: int) -> Plan:
        tables = np.tile(np.arange(self.table_width, dtype=np.int32), (SLOTS, 1))
        start = np.full(SLOTS, context - 1, np.int32)
        return decode_plan(np.full((SLOTS, 1), 7, np.int32), start, tables, self.config)

    def _index(self, plan: Plan, cache: Cache) -> RowIndex:
        ring = cache.window.codes.shape[2]
        return row_index(plan.producer, plan, self.config.sliding_window, ring)

    def _query(self, params: Params, layer: int, hidden: jax.Array) -> Any:
        weights = jax.tree.map(lambda leaf: leaf[layer], params.layers.attention)
        return weights, low_rank_query(hidden, weights, self.config, self.numerics)

    def _search(
        self, cache: Cache, plan: Plan, queries: Queries, layer: int, found: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        spec = self.config.layers[layer]
        index = self._index(plan, cache)
        return search(queries, cache, plan, index, spec, found, self.config, self.numerics)

    def _attend(
        self, params: Params, cache: Cache, plan: Plan, hidden: jax.Array, selection: Selection
    ) -> jax.Array:
        weights, query = self._query(params, SOURCE, hidden)
        index = self._index(plan, cache)
        output, _ = attention(
            hidden, query, SOURCE, weights, cache, plan, index, index, self.config.layers[SOURCE],
            selection, self.config, self.numerics, unobserved, ALONE,
        )  # fmt: skip
        return output

    def _step(self, params: Params, cache: Cache, plan: Plan) -> tuple[Cache, jax.Array]:
        cache, result = forward(params, cache, plan, self.config, self.numerics)
        return cache, result.logits

    def run_step(self, plan: Plan) -> jax.Array:
        self.cache, logits = self.step(self.params, self.cache, plan)
        return logits

    def at(self, context: int) -> Mapping[str, Callable[[], Any]]:
        """The parts at one context, ready to be timed."""
        plan = jax.device_put(self.plan(context))
        config, numerics = self.config, self.numerics
        heads = (SLOTS, config.index_n_heads, config.index_head_dim)
        keys = (SLOTS, context, config.index_head_dim)
        queries = jax.random.normal(jax.random.key(3), heads, numerics.dtype)
        decoded = jax.random.normal(jax.random.key(4), keys, numerics.dtype)
        weights = jax.random.normal(jax.random.key(5), heads[:2], jnp.float32)

        def searching(layer: int, found: jax.Array | None = None) -> Callable[[], Any]:
            visible = jnp.full(SLOTS, context // config.layers[layer].ratio, jnp.int32)
            asked = Queries(queries, weights, visible)
            return lambda: self.search[layer](self.cache, plan, asked, found=found)

        chosen, candidates = searching(SOURCE)()
        selection = Selection(chosen, candidates)
        return {
            "full scan 1": searching(SOURCE),
            "full scan 2": searching(RATIO_2),
            "product": lambda: self.product(queries, decoded),
            "restricted": searching(RESTRICTED, candidates),
            "attention": lambda: self.attend(self.params, self.cache, plan, self.hidden, selection),
            "step": lambda: self.run_step(plan),
        }


def _product(queries: jax.Array, keys: jax.Array) -> jax.Array:
    return jnp.einsum(
        "shd,snd->shn",
        queries,
        keys,
        precision="highest",
        preferred_element_type=jnp.float32,
    )


def measure(
    parts: Mapping[str, Callable[[], Any]], repetitions: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Milliseconds of every repetition of every part, each after an uncounted run of its own."""
    found: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(repetitions):
        for name, part in parts.items():
            jax.block_until_ready(part())
            start = clock()
            jax.block_until_ready(part())
            found[name].append((clock() - start) * 1e3)
    found["rest"] = [
        step - sum(scans)
        for step, *scans in zip(found["step"], *(found[name] for name in SCANS), strict=True)
    ]
    return found


def summary(times: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(times, n=4)
    return {"median_ms": round(median, 3), "spread_ms": round(high - low, 3)}


def report(results: Mapping[int, Mapping[str, dict[str, float]]]) -> list[str]:
    """A table of the parts, and a line per wanted ratio."""
    contexts = list(results)
    width = 22
    lines = ["part".ljust(14) + "".join(f"{context:>{width},}" for context in contexts)]
    for name in results[contexts[0]]:
        cells = (results[context][name] for context in contexts)
        lines.append(
            name.ljust(14)
            + "".join(
                f"{cell['median_ms']:.2f} +- {cell['spread_ms']:.2f} ms".rjust(width)
                for cell in cells
            )
        )
    for name in ("restricted", "attention", "rest"):
        medians = [results[context][name]["median_ms"] for context in contexts]
        ratio = medians[-1] / medians[-2]
        lines.append(
            f"{name}: {ratio:.2f} x from {contexts[-2]:,} to {contexts[-1]:,} tokens "
            f"({medians[-1] / medians[0]:.2f} x from {contexts[0]:,}); wanted at most {FLAT} x"
        )
    for context in contexts:
        row = results[context]
        ratio = row["full scan 1"]["median_ms"] / row["product"]["median_ms"]
        lines.append(
            f"full scan 1 at {context:,}: {ratio:.2f} x the plain product; "
            f"wanted at most {NEAR_PRODUCT} x"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numerics", choices=("exact", "runtime"), default="runtime")
    parser.add_argument("--contexts", default="2000,20000,100000", help="tokens, rising")
    parser.add_argument(
        "--candidate-blocks",
        type=int,
        default=2048,
        help="of 8 keys; a context below 8 x blocks has not filled its candidate set",
    )
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: processor time of all threads, steadier on a shared machine",
    )
    parser.add_argument("--json", help="write the figures to this file as well")
    arguments = parser.parse_args()
    contexts = [int(part) for part in arguments.contexts.split(",")]
    parts = Parts(POLICIES[arguments.numerics], max(contexts), arguments.candidate_blocks)
    results = {}
    for context in contexts:
        times = measure(parts.at(context), arguments.repetitions, CLOCKS[arguments.clock])
        results[context] = {name: summary(values) for name, values in times.items()}
    figures = {
        "numerics": arguments.numerics,
        "clock": arguments.clock,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "contexts": results,
    }
    print("\n".join(report(results)))
    print(json.dumps(figures))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
