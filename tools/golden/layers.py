"""Rounded numerics, layer by layer from stored inputs (`rt`).

One flipped code moves everything after it, so nothing here runs end to end: every sub-layer is fed
the stored input, in two ways.

* *Sequences*: prompts whose sub-layer inputs are stored for all rows run through prefill and decode
  with those
  inputs put in place, which exercises caches, selection, attention and experts.
* *Rows*: the saved rows of every prompt run with all stored values put in place, which exercises
  what is local to a
  row: stream mixing, norms, projections, experts, head.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dsinfer_jax.kernels import index_scores
from dsinfer_jax.model.observe import Key
from golden.reading import Tensors, prompts
from golden.report import Report
from golden.runner import DECODE_SLOTS, Replacements, Runner, Trace
from golden.sequences import LATENT_VALUES, split_name

UNEQUAL_ROWS_TOLERANCE = 0.02  # choices that a flipped code may move
INPUTS = ("attn_in", "ffn_in")
SEQUENCE_VALUES = (
    "q_lora", "q", "swa_kv", "latent", "main_kv", "index_k", "index_q", "index_w", "attn_ctx",
    "attn_out", "router_logits", "router_scores", "router_weights", "shared_out", "moe_out",
)  # fmt: skip
SEQUENCE_CHOICES = ("index_ids", "router_ids", "cand_blocks")
ROW_VALUES = (
    "engram_embed", "engram_kv", "engram_gate", "trunk_in", "pre_in", "pre_attn", "post_attn",
    "comb_attn", "attn_in", "q_lora", "swa_kv", "trunk_mid", "pre_ffn", "post_ffn", "comb_ffn",
    "ffn_in", "router_logits", "router_scores", "router_ids", "router_weights", "shared_out",
    "moe_out", "trunk_out", "final_hidden", "final_norm", "logits", "draft_features",
)  # fmt: skip
ROW_INPUTS = (
    *(name for name in ROW_VALUES if not name.startswith(("final", "logits", "draft"))),
    "attn_out", "engram_rows", "engram_trunk_in",
)  # fmt: skip
DECODED_SHARE = 7 / 8  # of a sequence's rows, from its end


def check_layers(folder: Path, runner: Runner, label: str, report: Report) -> None:
    """Every per-prompt file of a rounded set."""
    files = list(prompts(folder))
    kinds: dict[Key, tuple[tuple[int, ...], np.dtype]] = {}
    for _, golden in files:
        for key, value in _stored_rows(golden, runner).items():
            if key[0] in ROW_INPUTS:
                kinds[key] = (value.shape[1:], value.dtype)
    # one program serves all rows and all decode steps, another all prefills
    runner.decode_kinds = kinds
    runner.prefill_kinds = {key: kind for key, kind in kinds.items() if key[0] in INPUTS}
    for name, golden in files:
        _check_rows(golden, runner, f"{label} rows", name, report)
        _check_selection(golden, runner, f"{label} selection", name, report)
        inputs = _stored_inputs(golden)
        if not inputs:
            continue
        ids = golden["ids"]
        trace = Trace(len(ids))
        runner.prefill(runner.new_cache(), ids, trace, replacements=inputs)
        _compare(golden, trace, runner, f"{label} prefill", name, report)

        split = max(len(ids) - int(len(ids) * DECODED_SHARE), 1)
        decoded = Trace(len(ids))
        head = {key: values[:split] for key, values in inputs.items()}
        cache = runner.prefill(
            runner.new_cache(), ids, Trace(len(ids)), 3, stop=split, replacements=head
        )
        for position in range(split, len(ids)):
            cache, _ = runner.decode(cache, [ids[position]], [position], [3], [decoded], inputs)
        _compare(golden, decoded, runner, f"{label} decode", name, report, first=split)


def _stored_inputs(golden: Tensors) -> Replacements:
    """Inputs of all sub-layers by position, if the file has them for every row."""
    found = {}
    for name, value in golden.items():
        layer, kind = split_name(name)
        if kind in INPUTS and len(value) == len(golden["ids"]):
            found[kind, layer] = value
    layers = {layer for _, layer in found}
    complete = all((kind, layer) in found for kind in INPUTS for layer in layers)
    return found if found and complete else {}


def _compare(
    golden: Tensors,
    trace: Trace,
    runner: Runner,
    group: str,
    where: str,
    report: Report,
    first: int = 0,
) -> None:
    length = len(golden["ids"])
    for name, want in golden.items():
        layer, value = split_name(name)
        value = value.removesuffix("_all")
        key = (value, layer)
        if layer < 0 or key not in trace.values:
            continue
        rows = np.arange(length) if len(want) == length else golden["positions"]
        if value in LATENT_VALUES:
            ratio = runner.config.layers[layer].ratio
            rows = golden.get(f"{name}.rows", np.arange(len(want))) * ratio + ratio - 1
        chosen = rows >= first
        if not chosen.any():
            continue
        got, want, at = trace.values[key][rows[chosen]], want[chosen], f"{where} layer {layer}"
        if value in SEQUENCE_CHOICES:
            report.choices(f"{group} {value}", got, want, None, at, UNEQUAL_ROWS_TOLERANCE)
        elif value in SEQUENCE_VALUES:
            report.rows(f"{group} {value}", got, want, at)
    for layer in runner.config.engram.layer_ids if runner.config.engram else ():
        got = trace.values["engram_rows", layer][first:]
        want = golden[f"layer.{layer}.engram_rows_all"][first:]
        report.exact(f"{group} engram_rows", got, want, where)


def _stored_rows(golden: Tensors, runner: Runner) -> dict[Key, np.ndarray]:
    """Every row-local value the file has at its saved positions."""
    positions = golden["positions"]
    stored: dict[Key, np.ndarray] = {}
    for name, value in golden.items():
        layer, kind = split_name(name)
        if kind in LATENT_VALUES or kind.endswith(("_all", ".rows", "_scores")):
            continue
        if len(value) == len(golden["ids"]):
            value = value[positions]
        if kind not in ("ids", "positions") and len(value) == len(positions):
            stored["trunk_in" if kind == "engram_trunk_out" else kind, layer] = value
    for layer in range(1, runner.config.num_hidden_layers):  # left out where it is the same
        previous = stored.get(("trunk_out", layer - 1))
        unchanged = runner.config.layers[layer].engram is None
        if unchanged and ("trunk_in", layer) not in stored and previous is not None:
            stored["trunk_in", layer] = previous
    for layer in runner.config.engram.layer_ids if runner.config.engram else ():
        stored["engram_rows", layer] = golden[f"layer.{layer}.engram_rows_all"][positions]
    return stored


def _check_rows(golden: Tensors, runner: Runner, group: str, where: str, report: Report) -> None:
    """Feed the saved rows with every stored value in place; compare what is computed from them.

    Each row takes a decode slot of its own: only operations local to a row are compared.
    """
    positions, stored = golden["positions"], _stored_rows(golden, runner)
    computed: list[dict[Key, np.ndarray]] = []
    cache = runner.new_cache()
    for start in range(0, len(positions), DECODE_SLOTS):
        some = range(start, min(start + DECODE_SLOTS, len(positions)))
        given = {
            key: value[some.start : some.stop]
            for key, value in stored.items()
            if key in runner.decode_kinds
        }
        ids = golden["ids"][positions[some.start : some.stop]]
        slots = range(len(some))
        plan = runner.decode_plan(ids, positions[some.start : some.stop], slots)
        cache, recorded = runner.run(cache, plan, given, runner.decode_kinds)
        computed += [{key: rows[slot] for key, rows in recorded.items()} for slot in slots]
    for key, want in stored.items():
        if key[0] not in ROW_VALUES or key not in computed[0]:
            continue
        got = np.stack([row[key] for row in computed])
        at = f"{where} layer {key[1]}"
        if key[0] == "router_ids":
            report.choices(f"{group} router_ids", got, want, None, at, UNEQUAL_ROWS_TOLERANCE)
        else:
            report.rows(f"{group} {key[0]}", got, want, at)


def _check_selection(
    golden: Tensors, runner: Runner, group: str, where: str, report: Report
) -> None:
    """The chosen keys given the stored scores."""
    for name, scores in golden.items():
        layer, kind = split_name(name)
        if kind != "index_scores":
            continue
        want = golden[f"layer.{layer}.index_ids"]
        scores = jnp.asarray(scores, jnp.float32)
        scores = jnp.where(scores == 0, 0.0, scores)
        keys = jnp.arange(scores.shape[1], dtype=jnp.int32)
        best = index_scores.merge(index_scores.empty(len(want), want.shape[1]), scores, keys)
        got = np.asarray(best.keys)
        report.choices(f"{group} index_ids", got, want, None, f"{where} layer {layer}")
