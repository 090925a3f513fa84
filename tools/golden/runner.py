"""Running the product's forward pass over whole sequences and keeping what it computes on the
way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax._jax import jit
from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.observe import Key, Recorder
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket, Plan, Slice, Truncation, decode_plan, prefill_plan

DECODE_SLOTS = 8
TILE_ROWS = 8
OBSERVED = (
    "engram_trunk_in", "engram_rows", "engram_embed", "engram_kv", "engram_gate", "ngram_ids",
    "trunk_in", "pre_in", "attn_in", "pre_attn", "post_attn", "comb_attn", "q_lora", "q", "swa_kv",
    "latent", "main_kv", "index_k", "index_q", "index_w", "index_ids", "cand_blocks", "attn_ctx",
    "attn_out", "trunk_mid", "pre_ffn", "post_ffn", "comb_ffn", "ffn_in", "router_logits",
    "router_scores", "router_ids", "router_weights", "shared_out", "moe_out", "trunk_out",
    "final_hidden", "final_norm", "draft_features",
)  # fmt: skip
WHOLE = Truncation()
Replacements = Mapping[Key, np.ndarray]  # [rows, ...]: what to go on with instead
Optional = tuple[jax.Array, jax.Array]  # a replacement, and whether it is to be used
Kinds = Mapping[Key, tuple[tuple[int, ...], np.dtype]]  # row shape and dtype


@dataclass
class Trace:
    """Values of one sequence by position: an array [length, ...] per observed value."""

    length: int
    values: dict[Key, np.ndarray] = field(default_factory=dict)

    def put(self, key: Key, positions: np.ndarray, rows: np.ndarray) -> None:
        """Keep rows of the positions that exist (others are padding)."""
        exists = positions >= 0
        if key not in self.values:
            self.values[key] = np.zeros((self.length, *rows.shape[1:]), rows.dtype)
        self.values[key][positions[exists]] = rows[exists]


class Runner:
    """One model under one numerics policy, with a cache for several sequences."""

    def __init__(
        self, config: ModelConfig, params: Params, numerics: Numerics, longest: int
    ) -> None:
        self.config, self.params, self.numerics = config, params, numerics
        self.prefill_kinds: Kinds = {}  # what may be replaced in a prefill step
        self.decode_kinds: Kinds = {}
        table = -(-longest // CACHE_BLOCK_TOKENS)
        self.table_width = 1 << (table - 1).bit_length()
        self.sizes = caches.CacheSizes(DECODE_SLOTS, DECODE_SLOTS * self.table_width)
        self.prefill_rows = min(256, -(-longest // TILE_ROWS) * TILE_ROWS)
        self._step = jit(self._forward, donate=("cache",))

    def _forward(
        self, params: Params, cache: caches.Cache, plan: Plan, replaced: dict[Key, Optional]
    ) -> tuple[caches.Cache, dict[Key, jax.Array]]:
        recorder = Recorder(OBSERVED)

        def observe(name: str, layer: int, value: jax.Array) -> jax.Array:
            value = recorder(name, layer, value)
            if (name, layer) not in replaced:
                return value
            given, use = replaced[name, layer]
            return jnp.where(use, given.astype(value.dtype), value)

        cache, result = forward(params, cache, plan, self.config, self.numerics, observe)
        return cache, recorder.recorded | {("logits", -1): result.logits}

    def new_cache(self) -> caches.Cache:
        return caches.init(self.config, self.sizes, self.numerics)

    def blocks(self, slot: int) -> np.ndarray:
        """The block table of a slot: its own share of the cache."""
        return np.arange(self.table_width, dtype=np.int32) + slot * self.table_width

    def run(
        self, cache: caches.Cache, plan: Plan, given: Replacements, kinds: Kinds
    ) -> tuple[caches.Cache, dict[Key, np.ndarray]]:
        """One step. Every key of `kinds` is an argument of the program, given or not."""
        rows = len(plan.token_ids)
        replaced = {}
        for key, (shape, dtype) in kinds.items():
            values = np.zeros((rows, *shape), dtype)
            if key in given:
                values[: len(given[key])] = given[key]
            replaced[key] = (values, np.array(key in given))
        cache, recorded = self._step(self.params, cache, plan, replaced)
        return cache, {key: np.asarray(value) for key, value in recorded.items()}

    def slice_plan(self, ids: np.ndarray, start: int, slot: int) -> Plan:
        """One slice of one sequence, with every row's logits."""
        part = Slice(
            slot=slot,
            token_ids=ids,
            start=start,
            known_length=start + len(ids),
            blocks=self.blocks(slot),
            outputs=range(len(ids)),
        )
        return prefill_plan([part], self.bucket(), self.config)

    def bucket(self, consumer_rows: int | None = None) -> Bucket:
        return Bucket(
            rows=self.prefill_rows,
            sequences=1,
            table_width=self.table_width,
            outputs=self.prefill_rows,
            tile_rows=TILE_ROWS,
            consumer_rows=consumer_rows,
        )

    def prefill(
        self,
        cache: caches.Cache,
        ids: np.ndarray,
        trace: Trace,
        slot: int = 0,
        stop: int | None = None,
        truncation: Truncation = WHOLE,
        replacements: Replacements | None = None,
    ) -> caches.Cache:
        """Prefill `ids[:stop]`, slice by slice, keeping everything observed in `trace`."""
        stop = len(ids) if stop is None else stop
        for start in range(0, stop, self.prefill_rows):
            end = min(start + self.prefill_rows, stop)
            bound = 0 if truncation.mode == "off" else max(len(ids) - truncation.keep, 0)
            dropped = min(max(bound - start, 0), end - start)
            part = Slice(
                slot=slot,
                token_ids=ids[start:end],
                start=start,
                known_length=len(ids),
                blocks=self.blocks(slot),
                previous_ids=ids[max(start - 8, 0) : start],
                outputs=range(dropped if truncation.mode == "compact" else 0, end - start),
            )
            compact_rows = None
            if truncation.mode == "compact":  # another size than all rows, so that they differ
                compact_rows = -(-min(truncation.keep, self.prefill_rows) // 8) * 8 + 8
            plan = prefill_plan([part], self.bucket(compact_rows), self.config, truncation)
            given = {key: values[start:end] for key, values in (replacements or {}).items()}
            cache, recorded = self.run(cache, plan, given, self.prefill_kinds)
            _keep(trace, plan, recorded, len(part.outputs))
        return cache

    def decode(
        self,
        cache: caches.Cache,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        traces: Sequence[Trace | None],
        replacements: Replacements | None = None,
    ) -> tuple[caches.Cache, np.ndarray]:
        """One decode step of some slots. Returns logits [len(slots), vocab]."""
        plan = self.decode_plan(tokens, positions, slots)
        given = {}
        for key, values in (replacements or {}).items():
            rows = np.zeros((DECODE_SLOTS, *values.shape[1:]), values.dtype)
            rows[list(slots)] = values[list(positions)]
            given[key] = rows
        cache, recorded = self.run(cache, plan, given, self.decode_kinds)
        for slot, position, trace in zip(slots, positions, traces, strict=True):
            if trace is not None:
                for key, rows in recorded.items():
                    trace.put(key, np.array([position]), rows[slot : slot + 1])
        return cache, recorded["logits", -1][list(slots)]

    def decode_plan(
        self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]
    ) -> Plan:
        ids = np.zeros((DECODE_SLOTS, 1), np.int32)
        start = np.full(DECODE_SLOTS, -1, np.int32)
        ids[list(slots), 0], start[list(slots)] = tokens, positions
        tables = np.stack([self.blocks(slot) for slot in range(DECODE_SLOTS)])
        return decode_plan(ids, start, tables, self.config)


def _keep(trace: Trace, plan: Plan, recorded: dict[Key, np.ndarray], outputs: int) -> None:
    """File recorded rows under the positions they belong to."""
    producer, consumer = np.asarray(plan.producer.positions), np.asarray(plan.consumer.positions)
    wanted = consumer[np.asarray(plan.output_rows)]
    wanted[outputs:] = -1
    for key, rows in recorded.items():
        if key[0] in ("logits", "final_hidden", "final_norm"):
            positions = wanted
        else:
            positions = producer if len(rows) == len(producer) else consumer
        trace.put(key, positions, rows)
