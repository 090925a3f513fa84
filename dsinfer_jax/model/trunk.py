"""The residual trunk around a sub-layer, and the sub-layer that every layer ends with.

Backbone layers and draft stages share this: mixes are computed at a sub-layer's entry, the input is
the trunk collapsed with the *previous* sub-layer's pre mix, and the output is spread back (model.md
3.3).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.company import Company, RowNames
from dsinfer_jax.model.hyper_connection import Mixes, collapse, expand, mix
from dsinfer_jax.model.moe import moe
from dsinfer_jax.model.numerics import Numerics, rms_norm
from dsinfer_jax.model.observe import Observe
from dsinfer_jax.model.params import ExpertParams, HyperConnectionParams, LayerParams

Array = jax.Array


class Trunk(NamedTuple):
    """The residual state between sub-layers."""

    streams: Array  # [rows, streams, hidden]
    pre: Array  # [rows, streams] float32: pending pre mix, from the previous sub-layer's entry


def first_trunk(embedded: Array, config: ModelConfig) -> Trunk:
    """Equal copies of the embedding [rows, hidden]; the pending pre mix picks the first."""
    streams = jnp.repeat(embedded[:, None], config.hc_mult, axis=1)
    return Trunk(streams, jnp.zeros(streams.shape[:2], jnp.float32).at[:, 0].set(1.0))


def sublayer_input(
    trunk: Trunk,
    norm: Array,
    own: HyperConnectionParams,
    config: ModelConfig,
    numerics: Numerics,
) -> Array:
    """Collapse the streams with the pending pre mix (shifted) or the sub-layer's own, and norm."""
    pre = trunk.pre if config.hc_shifted else mix(trunk.streams, own, config).pre
    return rms_norm(collapse(trunk.streams, pre, numerics), norm, config.rms_norm_eps, numerics)


def entry_mixes(
    trunk: Trunk,
    params: HyperConnectionParams,
    side: str,
    config: ModelConfig,
    observe: Observe,
    layer: int,
) -> Mixes:
    """The mixes of a sub-layer, `side` being "attn" or "ffn"."""
    mixes = mix(trunk.streams, params, config)
    observe(f"pre_{side}", layer, mixes.pre)
    observe(f"post_{side}", layer, mixes.post)
    observe(f"comb_{side}", layer, mixes.residual)
    return mixes


def write_back(output: Array, trunk: Trunk, mixes: Mixes, numerics: Numerics) -> Trunk:
    """The trunk after a sub-layer; its pre mix is pending for the next one."""
    return Trunk(expand(output, trunk.streams, mixes, numerics), mixes.pre)


def expert_half(
    trunk: Trunk,
    number: Array | int,
    weights: LayerParams,
    experts: ExpertParams,
    experts_per_token: int,
    valid: Array,
    is_image: Array,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
    layer: int,
    company: Company,
    names: RowNames,
    of_draft: bool = False,
) -> tuple[Trunk, Array]:
    """Steps 4g to 4j: mixes, input, mixture of experts, write-back.

    Args:
        number: of the layer within `experts`, static or traced.
        layer: the number that `observe` is told.
        company, names, of_draft: see `company.Company.routed`.

    Returns:
        The trunk, and the experts that rows have chosen: [rows, choices] int32, -1 for none.
    """
    mixes = entry_mixes(trunk, weights.hc_ffn, "ffn", config, observe, layer)
    h = sublayer_input(trunk, weights.ffn_norm, weights.hc_ffn, config, numerics)
    with jax.named_scope("moe"):
        y, chosen = moe(
            observe("ffn_in", layer, h), valid, is_image, number, weights, experts,
            experts_per_token, config, numerics, observe, layer, company, names, of_draft,
        )  # fmt: skip
    trunk = write_back(observe("moe_out", layer, y), trunk, mixes, numerics)
    return trunk._replace(streams=observe("trunk_out", layer, trunk.streams)), chosen
