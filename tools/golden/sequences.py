"""Whole sequences in float32: prefill, decode, greedy continuations, truncation (`f32`,
`f32_variant`)."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.kernels import index_scores
from dsinfer_jax.model.plan import Truncation
from golden.reading import Tensors, grouped, prompts, read
from golden.report import LOGITS_TOLERANCE, Report
from golden.runner import DECODE_SLOTS, Runner, Trace

DECODED_ROWS = 24  # of each prompt's end, fed one by one
RENAMED = {"engram_rows_all": "engram_rows", "engram_trunk_out": "trunk_in"}
LATENT_VALUES = ("latent", "main_kv", "index_k")  # one row per group of tokens
LOGIT_NAMES = ("logits", "logits_first4", "logits_last", "top8_logits")


def check_sequences(folder: Path, runner: Runner, label: str, report: Report) -> None:
    """Every per-prompt file, through prefill and through decode, end to end."""
    for name, golden in prompts(folder):
        ids = golden["ids"]
        trace = Trace(len(ids))
        runner.prefill(runner.new_cache(), ids, trace)
        compare(golden, trace, runner.config, f"{label} prefill", name, report)

        split = max(len(ids) - DECODED_ROWS, 1)
        decoded = Trace(len(ids))
        cache = runner.prefill(runner.new_cache(), ids, decoded, slot=3, stop=split)
        for position in range(split, len(ids)):
            cache, _ = runner.decode(cache, [ids[position]], [position], [3], [decoded])
        compare(golden, decoded, runner.config, f"{label} decode", name, report, first=split)


def compare(
    golden: Tensors,
    trace: Trace,
    config: ModelConfig,
    group: str,
    where: str,
    report: Report,
    first: int = 0,
) -> None:
    """Compare all records of one prompt that the trace holds, at positions from `first` on."""
    saved = golden["positions"]
    for name, want in golden.items():
        layer, value = split_name(name)
        if value in ("ids", "positions") or value.endswith((".rows", "gap_all")):
            continue
        at = f"{where} layer {layer}" if layer >= 0 else where
        every = value.endswith("_all") or value == "ngram_ids"
        rows = np.arange(len(golden["ids"])) if every else saved
        key = (RENAMED.get(value, value.removesuffix("_all")), layer)
        if key[0] in ("index_scores", "cand_block_scores"):
            got_all = scores_of(trace, config, layer, key[0])
        elif key in trace.values:
            got_all = trace.values[key]
        else:
            report.exact(f"{group} {value} recorded", np.zeros(1), np.ones(1), at)
            continue
        if value in LATENT_VALUES:
            ratio = config.layers[layer].ratio
            groups = golden.get(f"{name}.rows", np.arange(len(want)))
            rows = groups * ratio + ratio - 1
        elif len(want) == len(golden["ids"]):
            rows = np.arange(len(want))
        chosen = rows >= first
        if not chosen.any():
            continue
        got, want, rows = got_all[rows[chosen]], want[chosen], rows[chosen]
        if want.dtype.kind == "i":
            kind = "index" if value.startswith("index_ids") else "router"
            gap = golden.get(f"layer.{layer}.{kind}_gap_all")
            if value.startswith(("index_ids", "router_ids")) and gap is not None:
                report.choices(f"{group} {key[0]}", got, want, gap[rows], at)
            else:
                report.choices(f"{group} {key[0]}", got, want, None, at)
        elif value in LOGIT_NAMES:
            report.absolute(f"{group} {value}", got, want, at, LOGITS_TOLERANCE)
        else:
            width = want.shape[1] if want.ndim > 1 else None
            report.relative(f"{group} {key[0]}", got[:, :width] if width else got, want, at)


def split_name(name: str) -> tuple[int, str]:
    if not name.startswith("layer."):
        return -1, name
    _, layer, value = name.split(".", 2)
    return int(layer), value


def scores_of(trace: Trace, config: ModelConfig, layer: int, value: str) -> np.ndarray:
    """Index scores [rows, keys] (or block maxima) from the recorded queries and keys."""
    spec = config.layers[layer]
    ratio = spec.ratio
    ends = np.arange(trace.length // ratio) * ratio + ratio - 1
    keys = trace.values["index_k", spec.index_k_source][ends]
    visible = (np.arange(trace.length) + 1) // ratio
    queries = index_scores.Queries(
        jnp.asarray(trace.values["index_q", layer]),
        jnp.asarray(trace.values["index_w", layer]),
        jnp.asarray(visible),
    )
    scores = np.array(index_scores.scores(queries, (jnp.asarray(keys)[None],), jnp.float32))
    numbers = np.arange(len(keys))
    scores[numbers >= visible[:, None]] = -np.inf
    size = config.candidate_block_size
    if value == "cand_block_scores":
        blocks = -(-len(keys) // size)
        padded = np.full((trace.length, blocks * size), -np.inf, np.float32)
        padded[:, : len(keys)] = scores
        maxima = padded.reshape(trace.length, blocks, size).max(axis=-1)
        rows = np.flatnonzero(visible > 0)
        maxima[rows, (visible[rows] - 1) // size] = np.inf
        return maxima
    if spec.candidates == "restricted":
        source = config.candidate_source_layer_id
        blocks = trace.values["cand_blocks", source]
        allowed = np.any((numbers // size)[None, :, None] == blocks[:, None, :], axis=-1)
        scores[~allowed] = -np.inf
    return scores


def check_greedy(folder: Path, runner: Runner, label: str, report: Report) -> None:
    """Greedy continuations of all prompts, decoded together in one batch."""
    records = grouped(read(folder / "greedy.safetensors"), r"(len\d+)\.")
    prompts_by_name = {name: golden["ids"] for name, golden in prompts(folder)}
    _check_continuations(
        {name: record for (name,), record in records.items()},
        {(name): prompts_by_name[name] for (name,) in records},
        {(name): Truncation() for (name,) in records},
        runner,
        f"{label} greedy",
        report,
    )


def _check_continuations(
    records: dict[str, Tensors],
    ids: dict[str, np.ndarray],
    truncations: dict[str, Truncation],
    runner: Runner,
    group: str,
    report: Report,
) -> None:
    names = list(records)
    for start in range(0, len(names), DECODE_SLOTS):
        batch = names[start : start + DECODE_SLOTS]
        cache, logits = runner.new_cache(), []
        for slot, name in enumerate(batch):
            trace = Trace(len(ids[name]))
            cache = runner.prefill(cache, ids[name], trace, slot, truncation=truncations[name])
            logits.append([trace.values["logits", -1][-1]])
        longest = max(len(records[name]["tokens"]) for name in batch)
        for step in range(longest - 1):
            running = [
                slot for slot, name in enumerate(batch) if step + 1 < len(records[name]["tokens"])
            ]
            tokens = [int(np.argmax(logits[slot][-1])) for slot in running]
            positions = [len(ids[batch[slot]]) + step for slot in running]
            cache, rows = runner.decode(cache, tokens, positions, running, [None] * len(running))
            for slot, row in zip(running, rows, strict=True):
                logits[slot].append(row)
        for name, rows in zip(batch, logits, strict=True):
            _compare_continuation(records[name], np.stack(rows), group, name, report)


def _compare_continuation(
    record: Tensors, logits: np.ndarray, group: str, where: str, report: Report
) -> None:
    report.exact(f"{group} tokens", np.argmax(logits, axis=1), record["tokens"], where)
    order = np.argsort(-logits, axis=1, kind="stable")[:, : record["top8_ids"].shape[1]]
    best = np.take_along_axis(logits, order, axis=1)
    report.absolute(f"{group} top logits", best, record["top8_logits"], where, LOGITS_TOLERANCE)
    gaps = np.abs(np.diff(record["top8_logits"], axis=1)).min(axis=1)
    report.choices(f"{group} top ids", order, record["top8_ids"], gaps * 1e-2, where)
    first = record["logits_first4"]
    report.absolute(f"{group} logits", logits[: len(first)], first, where, LOGITS_TOLERANCE)
    report.absolute(f"{group} logits", logits[-1], record["logits_last"], where, LOGITS_TOLERANCE)


def check_truncation(folder: Path, runner: Runner, label: str, report: Report) -> None:
    """Kept suffixes: mask and compact give the recorded rows, and each other's."""
    path = folder / "yoco_truncated.safetensors"
    if not path.exists():
        return
    ids_by_name = {name: golden["ids"] for name, golden in prompts(folder)}
    records = grouped(read(path), r"(len\d+)\.keep(\d+)\.")
    continued: dict[str, Tensors] = {}
    for (name, keep_text), record in records.items():
        keep, ids, where = int(keep_text), ids_by_name[name], f"{name} keep {keep_text}"
        traces = {}
        for mode in ("mask", "compact"):
            trace = traces[mode] = Trace(len(ids))
            runner.prefill(runner.new_cache(), ids, trace, truncation=Truncation(mode, keep))
            _compare_truncated(record, trace, f"{label} {mode}", where, report)
        outside = record["outside_position"]
        consumers = range(runner.config.first_consumer_layer, runner.config.num_hidden_layers)
        rows = [traces["mask"].values["attn_out", layer][outside[0]] for layer in consumers]
        want = record["outside_attn_out"]
        report.relative(f"{label} mask outside attn_out", np.stack(rows), want, where)
        kept = np.arange(max(len(ids) - keep, 0), len(ids))
        for layer in consumers:
            pair = [traces[mode].values["trunk_out", layer][kept] for mode in ("mask", "compact")]
            report.exact(f"{label} mask = compact", pair[0], pair[1], where)
        if "tokens" in record:
            continued[f"{name}.keep{keep}"] = record
    _check_continuations(
        continued,
        {name: ids_by_name[name.split(".")[0]] for name in continued},
        {name: Truncation("compact", int(name.split(".keep")[1])) for name in continued},
        runner,
        f"{label} compact greedy",
        report,
    )


def _compare_truncated(
    record: Tensors, trace: Trace, group: str, where: str, report: Report
) -> None:
    positions = record["positions"]
    logits = trace.values["logits", -1][positions]
    report.absolute(f"{group} logits", logits, record["logits"], where, LOGITS_TOLERANCE)
    for name, want in record.items():
        layer, value = split_name(name)
        if layer >= 0:
            got = trace.values[value, layer][positions]
            report.relative(f"{group} {value}", got, want, f"{where} layer {layer}")
