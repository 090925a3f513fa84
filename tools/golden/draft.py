"""The draft block (`draft.safetensors`): end to end in float32, from stored features in the rounded
set."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax._jax import jit
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.draft import draft_block, store_main_keys
from dsinfer_jax.model.observe import Key, Recorder
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import RowIndex, row_index
from golden.reading import Tensors, grouped, prompts, read
from golden.report import LOGITS_TOLERANCE, Report
from golden.runner import DECODE_SLOTS, Runner, Trace

CONFIDENCE_TOLERANCE = 1e-5
SLOT = 3
STAGE_VALUES = (
    "attn_in",
    "attn_out",
    "draft_kv",
    "ffn_in",
    "moe_out",
    "router_weights",
    "trunk_out",
)
OBSERVED = (*STAGE_VALUES, "router_ids", "draft_hidden", "base_logits", "markov_emb")


class Drafter:
    """The product's draft block over a runner's cache, greedy."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._draft = jit(self._block)
        self._store = jit(self._main_keys)

    def _block(
        self, params: Params, cache: caches.Cache, anchors: jax.Array, last: jax.Array
    ) -> dict[Key, jax.Array]:
        recorder = Recorder(OBSERVED)
        settings = self.runner.config.draft
        result = draft_block(
            params, cache, anchors, last, lambda logits, place: jnp.argmax(logits, -1),
            jnp.ones(settings.block_size), self.runner.config, self.runner.numerics, recorder,
        )  # fmt: skip
        slot_rows = slice(SLOT * settings.block_size, (SLOT + 1) * settings.block_size)
        stages = {key: value[slot_rows] for key, value in recorder.recorded.items()}
        return stages | {
            ("tokens", -1): result.tokens[SLOT],
            ("logits", -1): result.logits[SLOT],
            ("conf", -1): result.confidences[SLOT],
        }

    def draft(self, cache: caches.Cache, anchor: int, last: int) -> dict[Key, np.ndarray]:
        anchors = np.zeros(DECODE_SLOTS, np.int32)
        positions = np.full(DECODE_SLOTS, -1, np.int32)
        anchors[SLOT], positions[SLOT] = anchor, last
        recorded = self._draft(self.runner.params, cache, anchors, positions)
        return {key: np.asarray(value) for key, value in recorded.items()}

    def _main_keys(
        self, params: Params, cache: caches.Cache, features: jax.Array, index: RowIndex
    ) -> tuple[caches.Cache, dict[Key, jax.Array]]:
        recorder = Recorder(("main_hidden", "main_key"))
        cache = store_main_keys(
            features, params.draft, cache, index, index, True, self.runner.config,
            self.runner.numerics, recorder,
        )  # fmt: skip
        return cache, recorder.recorded

    def cache_from_features(
        self, features: np.ndarray, last: int
    ) -> tuple[caches.Cache, dict[Key, np.ndarray]]:
        """A cache whose main keys of the positions up to `last` come from stored features."""
        rows = len(features)
        positions = np.arange(last - rows + 1, last + 1, dtype=np.int32)
        ids = np.zeros(rows, np.int32)
        plan = self.runner.slice_plan(ids, int(positions[0]), SLOT)
        ring = self.runner.sizes.window_ring(self.runner.config)
        index = row_index(plan.producer, plan, self.runner.config.sliding_window, ring)
        padded = np.zeros((len(plan.token_ids), features.shape[1]), features.dtype)
        padded[:rows] = features
        cache, recorded = self._store(self.runner.params, self.runner.new_cache(), padded, index)
        return cache, {key: np.asarray(value)[:rows] for key, value in recorded.items()}


def check_draft(folder: Path, runner: Runner, label: str, report: Report) -> None:
    """Every record of a set. Rounded sets start from stored features, where a record has them."""
    path = folder / "draft.safetensors"
    if not path.exists() or runner.config.draft is None:
        return
    drafter = Drafter(runner)
    continuations = grouped(read(folder / "greedy.safetensors"), r"(len\d+)\.")
    ids_by_name = {name: golden["ids"] for name, golden in prompts(folder)}
    for (name, step), record in grouped(read(path), r"(len\d+)\.(step\d+)\.").items():
        last = int(record["context_len"].reshape(-1)[0]) - 1
        anchor = int(record["golden"].reshape(-1)[0])
        where = f"{name} {step}"
        if runner.numerics.rounds:
            if "features_window" not in record:
                continue
            cache, main = drafter.cache_from_features(record["features_window"], last)
            _compare_main(record, main, f"{label} draft", where, report)
            check = partial(_compare_rounded, record, drafter.draft(cache, anchor, last))
        else:
            following = continuations[(name,)]["tokens"]
            context = np.concatenate([ids_by_name[name], following])[: last + 1]
            trace = Trace(len(context))
            cache = runner.prefill(runner.new_cache(), context, trace, SLOT)
            if "features_window" in record:
                window = trace.values["draft_features", -1][-len(record["features_window"]) :]
                want = record["features_window"]
                report.relative(f"{label} draft features_window", window, want, where)
            check = partial(_compare_exact, record, drafter.draft(cache, anchor, last))
        check(f"{label} draft", where, report)


def _compare_main(
    record: Tensors, main: dict[Key, np.ndarray], group: str, where: str, report: Report
) -> None:
    report.rows(
        f"{group} main_hidden", main["main_hidden", -1], record["main_hidden_window"], where
    )
    for (name, stage), keys in main.items():
        want = record.get(f"mtp.{stage}.ctx_kv")
        if name == "main_key" and want is not None:
            report.rows(f"{group} ctx_kv", keys[-len(want) :], want, f"{where} stage {stage}")


def _recorded(record: Tensors, got: dict[Key, np.ndarray]) -> dict[str, tuple]:
    """(computed, stored) of every record the block computes."""
    pairs = {}
    for name, want in record.items():
        stage, value = -1, name
        if name.startswith("mtp."):
            _, stage_text, value = name.split(".", 2)
            stage = int(stage_text)
        if (value, stage) in got:
            pairs[name] = (got[value, stage], want)
    return pairs


def _compare_exact(
    record: Tensors, got: dict[Key, np.ndarray], group: str, where: str, report: Report
) -> None:
    for name, (value, want) in _recorded(record, got).items():
        kind = name.split(".")[-1]
        if want.dtype.kind == "i":
            report.exact(f"{group} {kind}", value, want, f"{where} {name}")
        elif kind in ("logits", "base_logits"):
            report.absolute(f"{group} {kind}", value, want, where, LOGITS_TOLERANCE)
        elif kind == "conf":
            report.absolute(f"{group} {kind}", value, want, where, CONFIDENCE_TOLERANCE)
        else:
            report.relative(f"{group} {kind}", value, want, f"{where} {name}")


def _compare_rounded(
    record: Tensors, got: dict[Key, np.ndarray], group: str, where: str, report: Report
) -> None:
    for name, (value, want) in _recorded(record, got).items():
        kind = name.split(".")[-1]
        if want.dtype.kind == "i":
            report.exact(f"{group} {kind}", value, want, f"{where} {name}")
        elif kind == "conf":
            report.relative(f"{group} {kind}", value, want, where, tolerance=5e-3)
        else:
            report.rows(f"{group} {kind}", value, want, f"{where} {name}")
