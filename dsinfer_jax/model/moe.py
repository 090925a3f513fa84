"""Mixture of experts: routing, routed experts, shared expert and their sum (model.md 9)."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.kernels import block_formats
from dsinfer_jax.kernels.grouped_matmul import group_pairs, grouped_matmul
from dsinfer_jax.model.cache import Stored, decode
from dsinfer_jax.model.company import Company, RowNames
from dsinfer_jax.model.numerics import Numerics, product_float, product_fp8
from dsinfer_jax.model.observe import Observe
from dsinfer_jax.model.params import ExpertParams, GateParams, LayerParams

Array = jax.Array

NORMALISER_EPS = 1e-20
EXPERT_TILE = (
    8  # rows per expert tile; one size everywhere keeps a row's bits independent of the batch
)


class Routing(NamedTuple):
    experts: Array  # [rows, experts per token] int32, by falling biased score
    weights: Array  # [rows, experts per token] float32


def router_scores(logits: Array) -> Array:
    """sqrt(softplus(x)), with x itself above 20, float32."""
    softplus = jnp.where(logits > 20.0, logits, jnp.log1p(jnp.exp(jnp.minimum(logits, 20.0))))
    return jnp.sqrt(softplus)


def route(scores: Array, bias: Array, experts_per_token: int, scaling: float) -> Routing:
    """The best experts by biased score, lowest id first among equals; weights ignore the bias."""
    biased = scores + bias
    _, experts = lax.top_k(jnp.where(biased == 0, 0.0, biased), experts_per_token)
    return Routing(experts, routing_weights(scores, experts, scaling))


def routing_weights(scores: Array, experts: Array, scaling: float) -> Array:
    """Normalised scores of the chosen experts times the scaling factor."""
    chosen = jnp.take_along_axis(scores, experts, axis=1)
    return chosen / (jnp.sum(chosen, axis=1, keepdims=True) + NORMALISER_EPS) * scaling


def swiglu(gate: Array, up: Array, limit: float) -> Array:
    """SiLU(gate) * up in float32; the gate has an upper clamp only."""
    gate = jnp.minimum(gate.astype(jnp.float32), limit)
    up = jnp.clip(up.astype(jnp.float32), -limit, limit)
    return gate / (1.0 + jnp.exp(-gate)) * up


def moe(
    h: Array,
    valid: Array,
    is_image: Array,
    layer: Array | int,
    params: LayerParams,
    experts: ExpertParams,
    experts_per_token: int,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
    observed_layer: int,
    company: Company,
    names: RowNames,
    of_draft: bool,
) -> tuple[Array, Array]:
    """One mixture-of-experts sub-layer.

    Args:
        h: [rows, hidden], the normed input.
        valid: [rows] bool; padding rows choose no expert.
        is_image: [rows] bool; image rows use the router's other bias.
        layer: number of the layer within `experts`, static or traced.
        params: this layer's gate and shared expert.
        experts: routed experts, stacked over layers; on a mesh those of this device.
        company, names, of_draft: see `company.Company.routed`.

    Returns:
        [rows, hidden]: shared expert first, then the chosen ones in order, one rounding; and the
        chosen experts [rows, experts per token], -1 on padding.
    """
    gate: GateParams = params.gate
    logits = product_float(h, gate.weight, numerics)
    scores = router_scores(logits)
    bias = jnp.where(is_image[:, None], gate.bias_vl, gate.bias)
    routing = route(scores, bias, experts_per_token, config.routed_scaling_factor)
    chosen = observe("router_ids", observed_layer, routing.experts)
    weights = routing.weights
    if chosen is not routing.experts:  # imported choices keep their own weights
        weights = routing_weights(scores, chosen, config.routed_scaling_factor)
    observe("router_logits", observed_layer, logits)
    observe("router_scores", observed_layer, scores)
    observe("router_weights", observed_layer, weights)

    chosen = jnp.where(valid[:, None], chosen, -1)
    with jax.named_scope("experts"):
        outputs = company.routed(
            encoded_rows(h, numerics), chosen, weights, names, layer, of_draft,
            partial(expert_outputs, layer, experts, config, numerics),
        ).reshape(*chosen.shape, -1)  # fmt: skip
    total = jnp.zeros(h.shape, jnp.float32)
    if params.shared_expert is not None:
        shared = observe(
            "shared_out",
            observed_layer,
            shared_expert(h, params.shared_expert, config, numerics),
        )
        total = total + shared.astype(jnp.float32)
    for choice in range(experts_per_token):
        total = total + outputs[:, choice].astype(jnp.float32)
    return numerics.store(total), chosen


def encoded_rows(h: Array, numerics: Numerics) -> Stored:
    """Rows as experts read them: e4m3 codes with their scales, or (exact policy) as they are."""
    if not numerics.rounds:
        return Stored(h, None)
    return Stored(*block_formats.e4m3_blocks(h))


def expert_outputs(
    layer: Array | int,
    experts: ExpertParams,
    config: ModelConfig,
    numerics: Numerics,
    rows: Stored,
    pair_rows: Array,
    pair_experts: Array,
    pair_weights: Array,
) -> Array:
    """Weighted outputs [pairs, hidden] of pairs of rows and experts.

    Args:
        rows: [rows, hidden], from `encoded_rows`.
        pair_rows: [pairs] int32.
        pair_experts: [pairs] int32 into `experts`; below 0 or past the end: none, the output is 0.
        pair_weights: [pairs] float32.
    """
    count = experts.w1.weight.shape[1]
    pair_experts = jnp.where(pair_experts < 0, count, pair_experts).astype(jnp.int32)
    groups = group_pairs(pair_experts, count, EXPERT_TILE)

    def product(x: Array, matrix: str) -> Array:
        weight = getattr(experts, matrix)
        return numerics.store(grouped_matmul(x, weight.weight, weight.scale, layer, groups))

    values = decode(rows, numerics)
    source = pair_rows.at[groups.source].get(mode="fill", fill_value=len(values))
    x = values.at[source].get(mode="fill", fill_value=0)  # empty places are zero
    hidden = swiglu(product(x, "w1"), product(x, "w3"), config.swiglu_limit)
    weight = pair_weights.at[groups.source].get(mode="fill", fill_value=0.0)
    hidden = hidden * weight[:, None]
    if numerics.expert_hidden_bf16:
        hidden = numerics.store(hidden)
    output = product(numerics.quantised(hidden), "w2")
    return output.at[groups.place].get(mode="fill", fill_value=0)


def shared_expert(h: Array, params: ExpertParams, config: ModelConfig, numerics: Numerics) -> Array:
    """The expert that every row passes through, with weight 1: [rows, hidden]."""
    gate = product_fp8(h, params.w1, numerics)
    up = product_fp8(h, params.w3, numerics)
    hidden = swiglu(gate, up, config.swiglu_limit)
    if numerics.expert_hidden_bf16:
        hidden = numerics.store(hidden)
    return product_fp8(hidden, params.w2, numerics)
