"""Mixture of experts: routing, routed experts, shared expert and their sum (model.md 9)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.kernels.grouped_matmul import Groups, group_pairs, grouped_matmul
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
) -> Array:
    """One mixture-of-experts sub-layer.

    Args:
        h: [rows, hidden], the normed input.
        valid: [rows] bool; padding rows choose no expert.
        is_image: [rows] bool; image rows use the router's other bias.
        layer: number of the layer within `experts`, static or traced.
        params: this layer's gate and shared expert.
        experts: routed experts, stacked over layers.

    Returns:
        [rows, hidden]: shared expert first, then the chosen ones in order, one rounding.
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

    outputs = routed_experts(h, valid, chosen, weights, layer, experts, config, numerics)
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
    return numerics.store(total)


def routed_experts(
    h: Array,
    valid: Array,
    chosen: Array,
    weights: Array,
    layer: Array | int,
    experts: ExpertParams,
    config: ModelConfig,
    numerics: Numerics,
) -> Array:
    """Outputs [rows, experts per token, hidden] of the chosen experts, already weighted."""
    rows, choices = chosen.shape
    count = experts.w1.weight.shape[1]
    pair_experts = jnp.where(valid[:, None], chosen, count).reshape(-1).astype(jnp.int32)
    groups = group_pairs(pair_experts, count, EXPERT_TILE)

    def product(x: Array, matrix: str) -> Array:
        weight = getattr(experts, matrix)
        return numerics.store(grouped_matmul(x, weight.weight, weight.scale, layer, groups))

    x = _placed(numerics.quantised(h), groups, choices)
    hidden = swiglu(product(x, "w1"), product(x, "w3"), config.swiglu_limit)
    pair_weights = jnp.append(weights.reshape(-1), 0.0)
    hidden = hidden * pair_weights[groups.source][:, None]
    if numerics.expert_hidden_bf16:
        hidden = numerics.store(hidden)
    output = product(numerics.quantised(hidden), "w2")
    by_pair = output.at[groups.place].get(mode="fill", fill_value=0)
    return by_pair.reshape(rows, choices, -1)


def _placed(x: Array, groups: Groups, choices: int) -> Array:
    """Rows [rows, width] copied to the places of their pairs; empty places are zero."""
    return x.at[groups.source // choices].get(mode="fill", fill_value=0)


def shared_expert(h: Array, params: ExpertParams, config: ModelConfig, numerics: Numerics) -> Array:
    """The expert that every row passes through, with weight 1: [rows, hidden]."""
    gate = product_fp8(h, params.w1, numerics)
    up = product_fp8(h, params.w3, numerics)
    hidden = swiglu(gate, up, config.swiglu_limit)
    if numerics.expert_hidden_bf16:
        hidden = numerics.store(hidden)
    return product_fp8(hidden, params.w2, numerics)
