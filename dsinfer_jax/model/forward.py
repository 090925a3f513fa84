"""The forward pass: the numbered steps of model.md 2, on one screen.

`forward` runs any plan, prefill or decode; the programs of the engine are this one function at
different shapes. It knows no request, no scheduler, no mesh and no file.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass

from dsinfer_jax.config import LayerSpec, ModelConfig
from dsinfer_jax.model.attention import attention, low_rank_query
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.company import ALONE, Company, RowNames
from dsinfer_jax.model.compressor import Latents, compress, store_index_keys, store_main_keys
from dsinfer_jax.model.draft import store_main_keys as store_main_keys_of_draft
from dsinfer_jax.model.engram import engram, look_back, remember_tokens, table_rows
from dsinfer_jax.model.hyper_connection import collapse, head_weights
from dsinfer_jax.model.indexer import Selection, select
from dsinfer_jax.model.numerics import Numerics, product_float, rms_norm
from dsinfer_jax.model.observe import Observe, unobserved
from dsinfer_jax.model.params import LayerParams, Params, at_layer
from dsinfer_jax.model.plan import Plan, RowIndex, row_index
from dsinfer_jax.model.trunk import (
    Trunk,
    entry_mixes,
    expert_half,
    first_trunk,
    sublayer_input,
    write_back,
)

Array = jax.Array


@register_dataclass
@dataclass(frozen=True)
class StepResult:
    """What a step returns beside the cache."""

    logits: Array  # [outputs, vocab] float32
    expert_loads: Array  # [layers, experts] int32: rows of this device that have chosen each


@dataclass(frozen=True)
class Step:
    """One step's constants, shared by all layers."""

    params: Params
    plan: Plan
    config: ModelConfig
    numerics: Numerics
    observe: Observe
    company: Company


@dataclass(frozen=True)
class Flow:
    """What travels from layer to layer beside the cache."""

    trunk: Trunk
    index: RowIndex  # of this device's rows
    token_ids: Array  # [rows] int32
    step_index: RowIndex  # of all rows of the step: the same on one device
    is_image: Array  # [rows] bool
    latents: Latents | None = None  # of the last source of compressed keys
    selection: Selection | None = None  # of the last index source


def forward(
    params: Params,
    cache: Cache,
    plan: Plan,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe = unobserved,
    company: Company = ALONE,
) -> tuple[Cache, StepResult]:
    """Run one step: rows in, cache updated, logits of the wanted rows out.

    Args:
        params, cache, plan: device trees; donate the cache.
        observe: see `model.observe`; anything but the default unrolls the layers.
        company: the other devices that run this step.
    """
    step = Step(params, plan, config, numerics, observe, company)
    ring = cache.window.codes.shape[2]
    step_index = row_index(plan.producer, plan, config.sliding_window, ring)
    index = own_index(step_index, company, consumer=False)
    token_ids = company.own_rows(jnp.asarray(plan.token_ids), False)
    is_image = token_ids == (-1 if config.image_token_id is None else config.image_token_id)

    # 1  engram hashes of all engram layers
    engram_rows, cache = hash_tokens(step, cache, step_index)
    # 2  embedding; 3  equal streams, pre mix on the first
    with jax.named_scope("embed"):
        embedded = embed(token_ids, index.valid, params, numerics)
    flow = Flow(first_trunk(embedded, config), index, token_ids, step_index, is_image)

    # 4  layers, in segments: what a segment's first layer owns, then one body for all of it
    features: dict[int, Array] = {}
    loads: list[Array] = []
    for segment in layer_segments(config):
        flow, cache = enter_segment(step, segment[0], flow, cache, engram_rows)
        flow, cache, found, used = run_segment(step, segment, flow, cache)
        features |= found
        loads.append(used)

    # 5 to 7  collapse, norm, head of the wanted rows
    with jax.named_scope("head"):
        wanted = company.rows_at(flow.trunk, jnp.asarray(plan.output_rows))
        logits = head(wanted, params, config, numerics, observe)
    if params.draft is not None:
        with jax.named_scope("draft_keys"):
            cache = store_draft_keys(step, features, (index, step_index), flow, cache)
    return cache, StepResult(logits, jnp.concatenate(loads))


def enter_segment(
    step: Step, spec: LayerSpec, flow: Flow, cache: Cache, engram_rows: tuple[Array, ...]
) -> tuple[Flow, Cache]:
    """What only the first layer of a segment does, before its attention (steps 4a and 4b).

    N-gram memory, compressed keys and index keys of all rows, the step into the consumer half, and
    the choice of keys that the segment's layers share.
    """
    if spec.engram is not None:  # 4a
        with jax.named_scope("engram"):
            flow = add_memory(step, spec, flow, engram_rows[spec.engram])
    if spec.owns_kv or spec.owns_index_keys:
        with jax.named_scope("compressed_keys"):
            flow, cache = store_compressed_keys(step, spec, flow, cache)
    if spec.index == step.config.first_consumer_layer:  # 4b
        flow = enter_consumer_half(step, flow, cache)
    if spec.owns_index:
        with jax.named_scope("index"):
            flow = choose_keys(step, spec, flow, cache)
    return flow, cache


def layer(
    step: Step, number: Array | int, spec: LayerSpec, trunk: Trunk, flow: Flow, cache: Cache
) -> tuple[Trunk, Cache, Array, Array]:
    """The body of every layer (steps 4c to 4j).

    Args:
        number: of the layer; traced in a scanned segment, where `spec` is its first layer.
        flow: row index and chosen keys.

    Returns:
        Trunk and cache; the stream mean at the layer's entry, a draft feature; and how many rows
        have chosen each expert: [experts] int32.
    """
    config, numerics, observe, at = step.config, step.numerics, step.observe, spec.index
    weights = at_layer(step.params.layers, number)
    trunk = Trunk(observe("trunk_in", at, trunk.streams), observe("pre_in", at, trunk.pre))
    feature = numerics.store(jnp.mean(trunk.streams.astype(jnp.float32), axis=1))

    # 4c to 4f  attention
    mixes = entry_mixes(trunk, weights.hc_attn, "attn", config, observe, at)
    h = attention_input(step, weights, trunk, at)
    query = observe("q_lora", at, low_rank_query(h, weights.attention, config, numerics))
    with jax.named_scope("attention"):
        y, cache = attention(
            h, query, number, weights.attention, cache, step.plan, flow.index, flow.step_index,
            spec, flow.selection, config, numerics, observe, step.company,
        )  # fmt: skip
    trunk = write_back(observe("attn_out", at, y), trunk, mixes, numerics)
    trunk = trunk._replace(streams=observe("trunk_mid", at, trunk.streams))

    # 4g to 4j  mixture of experts
    trunk, chosen = expert_half(
        trunk, number, weights, step.params.experts, config.num_experts_per_tok,
        flow.index.valid, flow.is_image, config, numerics, observe, at, step.company,
        RowNames(flow.index.positions, flow.token_ids),
    )  # fmt: skip
    every = jnp.arange(config.n_routed_experts, dtype=jnp.int32)
    loads = jnp.sum(chosen.reshape(-1, 1) == every, axis=0, dtype=jnp.int32)
    return trunk, cache, feature, loads


def attention_input(step: Step, weights: LayerParams, trunk: Trunk, at: int) -> Array:
    """The normed input of a layer's attention: [rows, hidden]."""
    h = sublayer_input(trunk, weights.attn_norm, weights.hc_attn, step.config, step.numerics)
    return step.observe("attn_in", at, h)


def add_memory(step: Step, spec: LayerSpec, flow: Flow, rows: Array) -> Flow:
    """Update the streams from the n-gram memory; the pending pre mix stays (model.md 8.6)."""
    assert spec.engram is not None
    observe, at = step.observe, spec.index
    streams = observe("engram_trunk_in", at, flow.trunk.streams)
    rows = observe("engram_rows", at, rows)
    memory = engram(
        streams, rows, flow.is_image, step.params.engrams[spec.engram], step.config, step.numerics,
        step.company,
    )  # fmt: skip
    observe("engram_embed", at, memory.rows_read)
    observe("engram_kv", at, memory.keys_and_value)
    observe("engram_gate", at, memory.gate)
    return replace(flow, trunk=flow.trunk._replace(streams=memory.streams))


def head(
    trunk: Trunk, params: Params, config: ModelConfig, numerics: Numerics, observe: Observe
) -> Array:
    """Collapse the last trunk, norm it, multiply with the output matrix: float32 [rows, vocab]."""
    pre = trunk.pre
    if params.head_mix is not None:
        pre = head_weights(trunk.streams, params.head_mix, config)
    hidden = observe("final_hidden", -1, collapse(trunk.streams, pre, numerics))
    normed = observe("final_norm", -1, rms_norm(hidden, params.norm, config.rms_norm_eps, numerics))
    return product_float(normed, params.head, numerics)


def embed(token_ids: Array, valid: Array, params: Params, numerics: Numerics) -> Array:
    """Rows of the embedding [rows, hidden]; ids outside the vocabulary and padding give zeros."""
    inside = valid & (token_ids >= 0) & (token_ids < params.embed.shape[0])
    rows = params.embed[jnp.where(inside, token_ids, 0)]
    return jnp.where(inside[:, None], rows, 0).astype(numerics.dtype)


def hash_tokens(step: Step, cache: Cache, index: RowIndex) -> tuple[tuple[Array, ...], Cache]:
    """Table rows of every engram layer for this device's rows, and the cache with this step's
    tokens remembered; `index` is of all rows of the step."""
    hashes, engrams = step.params.hashes, step.config.engram
    if engrams is None or hashes is None:
        return (), cache
    with jax.named_scope("engram_hash"):
        recent, kept = remember_tokens(cache.recent_tokens, step.plan, index)
        ngrams = look_back(recent, step.plan, index, hashes, engrams.max_ngram_size)
        ngrams = step.observe("ngram_ids", -1, ngrams)
        rows = table_rows(ngrams, hashes, engrams)
        return step.company.own_rows(rows, False), replace(cache, recent_tokens=kept)


def store_compressed_keys(
    step: Step, spec: LayerSpec, flow: Flow, cache: Cache
) -> tuple[Flow, Cache]:
    """Compressed keys and index keys of all rows of the step, before anyone reads them."""
    latents, numerics, config = flow.latents, step.numerics, step.config
    if spec.owns_kv:
        weights = at_layer(step.params.layers, spec.index)
        h = attention_input(step, weights, flow.trunk, spec.index)
        latents, cache = compress(
            h, step.params, cache, flow.step_index, spec, config, numerics, step.company
        )
        step.observe("latent", spec.index, latents.values)
        cache = store_main_keys(latents, cache, step.plan, spec, config, numerics, step.observe)
    assert latents is not None
    if spec.owns_index_keys:
        cache = store_index_keys(
            latents, step.params, cache, step.plan, spec, config, numerics, step.observe
        )
    return replace(flow, latents=latents), cache


def enter_consumer_half(step: Step, flow: Flow, cache: Cache) -> Flow:
    """Go on with the consumer rows: all of them, or in compact truncation the kept ones (7.4)."""
    ring, company = cache.window.codes.shape[2], step.company
    step_index = row_index(step.plan.consumer, step.plan, step.config.sliding_window, ring)
    index = own_index(step_index, company, consumer=True)
    rows, kept = (flow.trunk, flow.token_ids, flow.is_image), step.plan.kept
    if kept is not None:
        rows = company.own_rows(company.rows_at(rows, jnp.asarray(kept)), True)
    trunk, token_ids, is_image = rows
    return replace(
        flow, index=index, step_index=step_index, trunk=trunk, token_ids=token_ids,
        is_image=is_image,
    )  # fmt: skip


def own_index(step_index: RowIndex, company: Company, consumer: bool) -> RowIndex:
    """The rows of one device; its tiles are tiles of the step."""
    rows = {field.name: getattr(step_index, field.name) for field in fields(step_index)}
    del rows["tile_sequence"]
    rows["positions"] = rows["positions"] + 1  # what fills a share up is zero, and so no row
    own = company.own_rows(rows, consumer)
    own["positions"] = own["positions"] - 1
    tile_sequence = own["sequence"][:: step_index.tile_rows]
    return RowIndex(**own, tile_sequence=tile_sequence)


def choose_keys(step: Step, spec: LayerSpec, flow: Flow, cache: Cache) -> Flow:
    """Run the index source: the keys that this layer and the segment's others attend to."""
    weights = at_layer(step.params.layers, spec.index)
    h = attention_input(step, weights, flow.trunk, spec.index)
    query = low_rank_query(h, weights.attention, step.config, step.numerics)
    candidates = flow.selection.candidates if flow.selection else None
    selection = select(
        h, query, step.params, cache, step.plan, flow.index, spec, candidates,
        step.config, step.numerics, step.observe,
    )  # fmt: skip
    return replace(flow, selection=selection)


def store_draft_keys(
    step: Step,
    features: dict[int, Array],
    producer: tuple[RowIndex, RowIndex],
    last: Flow,
    cache: Cache,
) -> Cache:
    """Main keys of the draft, from the stream means of its target layers (speculative.md 2.3).

    Args:
        producer: indices of the producer half, own and step.
    """
    assert step.config.draft is not None and step.params.draft is not None
    targets = step.config.draft.target_layer_ids
    feature = jnp.concatenate([features[target] for target in targets], axis=-1)
    feature = step.observe("draft_features", -1, feature)
    consumer = targets[0] >= step.config.first_consumer_layer
    index, step_index = (last.index, last.step_index) if consumer else producer
    return store_main_keys_of_draft(
        feature, step.params.draft, cache, index, step_index, consumer, step.config,
        step.numerics, step.observe, step.company,
    )  # fmt: skip


def layer_segments(config: ModelConfig) -> list[tuple[LayerSpec, ...]]:
    """Layers in order, cut before every layer that owns something and where the ratio changes.

    The layers of one segment differ in their weights only.
    """
    segments: list[tuple[LayerSpec, ...]] = []
    for spec in config.layers:
        last = segments[-1] if segments else ()
        if last and spec.plain and (spec.ratio, spec.consumer) == (last[0].ratio, last[0].consumer):
            segments[-1] = (*last, spec)
        else:
            segments.append((spec,))
    return segments


def run_segment(
    step: Step, segment: tuple[LayerSpec, ...], flow: Flow, cache: Cache
) -> tuple[Flow, Cache, dict[int, Array], Array]:
    """All layers of a segment as one compiled body, the draft features among them, and how many
    rows have chosen each expert [layers, experts].

    The cache travels in the scan's carry, written in place. An observed step unrolls its layers.
    """
    targets = step.config.draft.target_layer_ids if step.config.draft else ()
    wanted = [spec.index for spec in segment if spec.index in targets]
    trunk = flow.trunk
    features: dict[int, Array] = {}
    if step.observe is not unobserved or len(segment) == 1:
        counts = []
        for spec in segment:
            trunk, cache, features[spec.index], used = layer(
                step, spec.index, spec, trunk, flow, cache
            )
            counts.append(used)
        found = {at: features[at] for at in wanted}
        return replace(flow, trunk=trunk), cache, found, jnp.stack(counts)

    def body(carry: tuple[Trunk, Cache], number: Array) -> tuple[tuple[Trunk, Cache], Any]:
        trunk, cache, feature, used = layer(step, number, segment[0], carry[0], flow, carry[1])
        return (trunk, cache), (feature if wanted else None, used)

    first = segment[0].index
    numbers = jnp.arange(first, first + len(segment), dtype=jnp.int32)
    (trunk, cache), (by_layer, loads) = lax.scan(body, (trunk, cache), numbers)
    return replace(flow, trunk=trunk), cache, {at: by_layer[at - first] for at in wanted}, loads
