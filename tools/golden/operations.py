"""Single operations: `ops.safetensors` against the functions the forward pass is made of."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dsinfer_jax.checkpoint.vocabulary import fold_vocabulary
from dsinfer_jax.config import EngramConfig, ModelConfig
from dsinfer_jax.kernels import block_formats, index_scores
from dsinfer_jax.kernels.sparse_attention import attend
from dsinfer_jax.model import compressor, engram, hashing, hyper_connection, moe, rotary
from dsinfer_jax.model.numerics import EXACT
from dsinfer_jax.model.params import HashParams, HyperConnectionParams
from golden.reading import Tensors
from golden.report import Report

ROUNDING = 2e-6  # float32 arithmetic in another order


def check_operations(ops: Tensors, config: ModelConfig, tokenizer: Path, report: Report) -> None:
    """Compare every record of `ops` that this project has an operation for."""
    given = {name: jnp.asarray(value) for name, value in ops.items() if value.dtype != np.int64}
    _formats(given, report)
    _rotary(given, config, report)
    _hyper_connection(given, config, report)
    _small_parts(given, report)
    _topk(given, report)
    _engram_gate(given, config, report)
    _engram_hashes(ops, config, tokenizer, report)
    _large_tables(ops, config, report)


def _formats(ops: Tensors, report: Report) -> None:
    f32 = jnp.float32
    codes, scale = block_formats.e2m1_blocks(ops["act.input"])
    decoded = {
        "tables.e2m1": block_formats.e2m1_values(jnp.arange(16, dtype=jnp.uint8)),
        "tables.ue8m0": block_formats.power_of_two(jnp.arange(255, dtype=jnp.uint8)),
        "e2m1_round.codes": block_formats.e2m1_codes(ops["e2m1_round.input"]),
        "act.fp8_ue8m0_32.dequant": block_formats.decode_e4m3_rows(
            *block_formats.e4m3_blocks(ops["act.input"]), f32
        ),
        "act.fp4_ue8m0_32.dequant": block_formats.decode_e2m1_rows(
            block_formats.pack_nibbles(codes), scale, f32
        ),
        "act.fp4_e4m3_16.dequant": block_formats.decode_e2m1_rows(
            *block_formats.e2m1_e4m3_blocks(ops["act.input"]), f32
        ),
        "fp8_block.dequant": block_formats.decode_e4m3_matrix(
            ops["fp8_block.codes"].view(jnp.float8_e4m3fn), ops["fp8_block.scale_bytes"], f32
        ),
        "mxfp4.dequant": block_formats.decode_e2m1_rows(
            ops["mxfp4.packed"], ops["mxfp4.scale_bytes"], f32
        ),
    }
    for name, got in decoded.items():
        report.exact(f"ops {name}", np.asarray(got), np.asarray(ops[name]))
    table = np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float32)
    want = np.asarray(ops["tables.e4m3"])
    report.exact("ops tables.e4m3", np.nan_to_num(table, nan=-1), np.nan_to_num(want, nan=-1))


def _rotary(ops: Tensors, config: ModelConfig, report: Report) -> None:
    for name, ratio in (("plain", 0), ("yarn", 2)):
        got = rotary.inverse_frequencies(config, ratio)
        report.relative(f"ops rope.{name}.inv_freq", got, ops[f"rope.{name}.inv_freq"])
    for name in ("plain", "yarn", "yarn_long"):
        record = {part: ops[f"rope.{name}.{part}"] for part in ("positions", "inv_freq")}
        ones = jnp.tile(jnp.array([1.0, 0.0]), (len(record["positions"]), len(record["inv_freq"])))
        turned = rotary.rotate(ones, record["positions"], np.asarray(record["inv_freq"]))
        for part, got in (("cos", turned[:, 0::2]), ("sin", turned[:, 1::2])):
            want = np.asarray(ops[f"rope.{name}.{part}"])
            report.relative(f"ops rope.{name}.{part}", np.asarray(got), want)
    frequencies = np.asarray(ops["rope.yarn.inv_freq"])
    for name, inverse in (("forward", False), ("inverse", True)):
        got = rotary.rotate(
            ops["rope.apply.input"], ops["rope.apply.positions"], frequencies, inverse
        )
        want = np.asarray(ops[f"rope.apply.{name}"])
        report.relative(f"ops rope.apply.{name}", np.asarray(got), want, tolerance=ROUNDING)


def _hyper_connection(ops: Tensors, config: ModelConfig, report: Report) -> None:
    streams = ops["hc.streams"]
    config = replace(config, hc_mult=streams.shape[1])
    weights = HyperConnectionParams(ops["hc.fn"], ops["hc.base"], ops["hc.scale"])
    mixes = hyper_connection.mix(streams, weights, replace(config, hc_sinkhorn_iters=20))
    after = hyper_connection.expand(ops["hc.sublayer_out"], streams, mixes, EXACT)
    results = {
        "pre": mixes.pre,
        "post": mixes.post,
        "comb": mixes.residual,
        "collapsed_with_pre": hyper_connection.collapse(streams, mixes.pre, EXACT),
        "streams_after": after,
    }
    for name, got in results.items():
        report.relative(f"ops hc.{name}", np.asarray(got), np.asarray(ops[f"hc.{name}"]))
    for name in (name for name in ops if name.startswith("sinkhorn.iters")):
        iterations = int(name.removeprefix("sinkhorn.iters"))
        got = hyper_connection.sinkhorn(ops["sinkhorn.input"], iterations, config.hc_eps)
        report.relative(f"ops {name}", np.asarray(got), np.asarray(ops[name]))


def _small_parts(ops: Tensors, report: Report) -> None:
    gates_and_values = jnp.stack([ops["compress2.score"], ops["compress2.latent"]], axis=2)
    pooled = compressor.pool_pair(gates_and_values[:, 0], gates_and_values[:, 1])
    report.relative("ops compress2.out", np.asarray(pooled), np.asarray(ops["compress2.out"]))

    query, keys = ops["attn_sink.q"], ops["attn_sink.kv"]
    attended = attend(
        query,
        jnp.broadcast_to(keys, (len(query), *keys.shape)),
        ops["attn_sink.mask"] != 0,
        ops["attn_sink.sink"],
        query.shape[-1] ** -0.5,
        jnp.dtype(jnp.float32),
    )
    report.relative("ops attn_sink.out", np.asarray(attended), np.asarray(ops["attn_sink.out"]))

    scores = moe.router_scores(ops["router.logits"])
    for name, bias in (("bias", ops["router.bias_vector"]), ("nobias", jnp.zeros(scores.shape[1]))):
        want = np.asarray(ops[f"router.{name}.ids"])
        scaling = float(np.asarray(ops[f"router.{name}.weights"])[0].sum())
        routing = moe.route(scores, bias, want.shape[1], round(scaling, 4))
        report.exact(f"ops router.{name}.ids", np.asarray(routing.experts), want)
        weights = np.asarray(ops[f"router.{name}.weights"])
        report.relative(f"ops router.{name}.weights", np.asarray(routing.weights), weights)
    for name in (name for name in ops if name.startswith("swiglu.out_limit")):
        limit = float(name.removeprefix("swiglu.out_limit"))
        got = moe.swiglu(ops["swiglu.gate"], ops["swiglu.up"], limit)
        report.relative(f"ops {name}", np.asarray(got), np.asarray(ops[name]), tolerance=ROUNDING)


def _topk(ops: Tensors, report: Report) -> None:
    """Selection given scores: the running top-k, fed in one piece and in several."""
    scores, visible = ops["topk.scores"], ops["topk.visible"][:, None]
    keys = jnp.arange(scores.shape[1], dtype=jnp.int32)
    masked = jnp.where(keys < visible, jnp.where(scores == 0, 0.0, scores), -jnp.inf)
    want = np.asarray(ops["topk.full_ids_k16"])
    for pieces in (1, 4):
        got = _running_topk(masked, keys, want.shape[1], pieces)
        report.exact(f"ops topk.full in {pieces}", got, want)
    block_scores = ops["topk.block_scores"]
    ids = jnp.arange(block_scores.shape[1], dtype=jnp.int32)
    want = np.asarray(ops["topk.block_ids_8of8"])
    got = _running_topk(block_scores, ids, want.shape[1], 1)
    report.exact("ops topk.block_ids", got, want)

    size = -(-scores.shape[1] // block_scores.shape[1])
    in_blocks = jnp.any((keys // size)[None, :, None] == want[:, None, :], axis=-1)
    restricted = jnp.where(in_blocks, masked, -jnp.inf)
    want = np.asarray(ops["topk.restricted_ids_k16"])
    report.exact("ops topk.restricted", _running_topk(restricted, keys, want.shape[1], 1), want)


def _running_topk(scores: np.ndarray, keys: np.ndarray, k: int, pieces: int) -> np.ndarray:
    best = index_scores.empty(scores.shape[0], k)
    for piece in np.array_split(np.arange(scores.shape[1]), pieces):
        best = index_scores.merge(best, scores[:, piece], keys[piece])
    return np.asarray(best.keys)


def _engram_gate(ops: Tensors, config: ModelConfig, report: Report) -> None:
    streams, kv = ops["engram_gate.streams"], ops["engram_gate.kv"]
    weight = ops["engram_gate.q_weight"] * ops["engram_gate.k_weight"]
    opened = engram.gate(streams, kv[:, :-1], weight, config.rms_norm_eps)
    # At a product of exactly 0 public sources disagree: 0.5 in the record, sigmoid(+-0.001) in
    # model.md 8.5.
    zero = ops["engram_gate.gate"] == 0.5
    report.exact(
        "ops engram_gate zero", np.asarray(jnp.abs(opened - 0.5) < 2.6e-4)[zero], zero[zero]
    )
    opened = jnp.where(zero, 0.5, opened)
    report.relative("ops engram_gate.gate", opened, ops["engram_gate.gate"])
    after = streams + opened[..., None] * kv[:, -1:]
    report.relative("ops engram_gate.out", after, ops["engram_gate.out"])


def _hashes(layers: list[np.ndarray], token_map: np.ndarray, pad_id: int) -> HashParams:
    return HashParams(
        jnp.asarray(token_map, jnp.int32),
        jnp.asarray(pad_id, jnp.int32),
        jnp.asarray(hashing.limbs(np.stack(layers))),
    )


def _engram_hashes(ops: Tensors, config: ModelConfig, tokenizer: Path, report: Report) -> None:
    settings = config.engram
    if settings is None or "engram.token_map" not in ops:
        return
    token_map = fold_vocabulary(tokenizer)
    report.exact("ops engram.token_map", token_map, ops["engram.token_map"])
    layers = []
    for position, layer in enumerate(settings.layer_ids):
        primes = np.array(settings.primes[position])
        report.exact("ops engram.primes", primes, ops[f"engram.layer{layer}.primes"], f"{layer}")
        numbers = hashing.multipliers(layer, int(token_map.max()) + 1, settings.max_ngram_size)
        want = ops[f"engram.layer{layer}.multipliers"]
        report.exact("ops engram.multipliers", numbers, want, f"{layer}")
        layers.append(numbers)
    hashes = _hashes(layers, token_map, int(token_map[settings.pad_token_id]))

    ids = ops["engram.ids"]
    compressed = token_map[ids]
    report.exact("ops engram.compressed_ids", compressed, ops["engram.compressed_ids"])
    ngrams = _look_back(ids, settings.max_ngram_size, hashes)
    report.exact("ops engram.ngrams", np.asarray(ngrams), ops["engram.ngrams"])
    for layer, rows in zip(
        settings.layer_ids, engram.table_rows(ngrams, hashes, settings), strict=True
    ):
        report.exact("ops engram.rows", np.asarray(rows), ops[f"engram.layer{layer}.rows"])

    # with images: the record gives compressed ids, so fold with the identity
    compressed = ops["engram.with_images.compressed_ids"]
    pad = int(token_map[settings.pad_token_id])
    identity = _hashes(layers, np.arange(token_map.max() + 1), pad)
    got = _look_back(compressed, settings.max_ngram_size, identity)
    report.exact("ops engram.with_images", np.asarray(got), ops["engram.with_images.ngrams"])


def _look_back(ids: np.ndarray, count: int, hashes: HashParams) -> np.ndarray:
    position = np.arange(len(ids))[:, None] - np.arange(count)
    return engram.fold_tokens(
        jnp.asarray(ids[np.maximum(position, 0)]), jnp.asarray(position >= 0), hashes
    )


def _large_tables(ops: Tensors, config: ModelConfig, report: Report) -> None:
    """Hashes into tables of many rows; the record gives primes and multipliers."""
    names = sorted(name for name in ops if name.startswith("engram_big.") and "primes" in name)
    for name in names:
        prefix = name.removesuffix(".primes")
        numbers, primes = ops[f"{prefix}.multipliers"], ops[name]
        ids = jnp.asarray(ops["engram_big.compressed_ids"], jnp.int32)
        limbs = jnp.asarray(hashing.limbs(numbers))[None]
        hashes = HashParams(jnp.zeros(1, jnp.int32), jnp.asarray(2, jnp.int32), limbs)
        settings = _settings_with(primes, len(numbers))
        position = np.arange(len(ids))[:, None] - np.arange(len(numbers))
        ngrams = jnp.where(position >= 0, ids[np.maximum(position, 0)], 0)
        (rows,) = engram.table_rows(ngrams, hashes, settings)
        # the first rows look back past the start, to a pad id that the record does not state
        whole = slice(len(numbers) - 1, None)
        want = ops[f"{prefix}.rows"][whole]
        report.exact("ops engram_big.rows", np.asarray(rows)[whole], want.astype(np.int32), prefix)


def _settings_with(primes: np.ndarray, ngram: int) -> EngramConfig:
    """An engram configuration with the given primes in place of its derived ones."""
    settings = EngramConfig((0,), ngram, int(primes.min()), primes.shape[1], 32, 2, None)
    vars(settings)["primes"] = (tuple(map(tuple, primes.tolist())),)  # fills the cached property
    return settings
