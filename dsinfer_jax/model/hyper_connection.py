"""Hyper-connections: several residual streams, mixed around every sub-layer (model.md 3)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.numerics import Numerics, rows_product
from dsinfer_jax.model.params import HeadMixParams, HyperConnectionParams

Array = jax.Array


class Mixes(NamedTuple):
    """Coefficients of one sub-layer, all float32."""

    pre: Array  # [rows, streams]: collapse the streams into a sub-layer's input
    post: Array  # [rows, streams]: spread the sub-layer's output over the streams
    residual: Array  # [rows, streams, streams]: old stream (axis 1) into new stream (axis 2)


def _scaled_product(streams: Array, fn: Array, eps: float) -> Array:
    """(X . fn^T) * rho, with one RMS statistic over all streams. [rows, streams, hidden] -> [rows,
    out]."""
    flat = streams.astype(jnp.float32).reshape(streams.shape[0], -1)
    inverse_rms = lax.rsqrt(jnp.mean(flat * flat, axis=-1, keepdims=True) + eps)
    return rows_product(flat, fn) * inverse_rms


def mix(streams: Array, params: HyperConnectionParams, config: ModelConfig) -> Mixes:
    """Coefficients from the trunk at a sub-layer's entry (model.md 3.1)."""
    count = config.hc_mult
    terms = _scaled_product(streams, params.fn, config.rms_norm_eps)
    scale = jnp.repeat(
        params.scale, jnp.array([count, count, count**2]), total_repeat_length=config.mixes
    )
    terms = terms * scale + params.base
    pre, post, residual = jnp.split(terms, (count, 2 * count), axis=-1)
    return Mixes(
        pre=jax.nn.sigmoid(pre) + config.hc_eps,
        post=2.0 * jax.nn.sigmoid(post),
        residual=sinkhorn(
            residual.reshape(-1, count, count), config.hc_sinkhorn_iters, config.hc_eps
        ),
    )


def sinkhorn(logits: Array, iterations: int, eps: float) -> Array:
    """Nearly doubly stochastic matrices from logits [rows, streams, streams]; ends on columns."""
    matrix = jax.nn.softmax(logits, axis=-1) + eps
    matrix = matrix / (jnp.sum(matrix, axis=-2, keepdims=True) + eps)

    def rows_then_columns(_: int, matrix: Array) -> Array:
        matrix = matrix / (jnp.sum(matrix, axis=-1, keepdims=True) + eps)
        return matrix / (jnp.sum(matrix, axis=-2, keepdims=True) + eps)

    return lax.fori_loop(0, iterations - 1, rows_then_columns, matrix)


def collapse(streams: Array, weights: Array, numerics: Numerics) -> Array:
    """sum_j weights_j X_j: [rows, streams, hidden] -> [rows, hidden], rounded once."""
    return numerics.store(jnp.sum(weights[..., None] * streams.astype(jnp.float32), axis=1))


def expand(output: Array, streams: Array, mixes: Mixes, numerics: Numerics) -> Array:
    """The new trunk: stream k gets post_k * output + sum_j residual[j, k] * X_j, rounded once."""
    streams = streams.astype(jnp.float32)
    kept = jnp.sum(mixes.residual[..., None] * streams[:, :, None, :], axis=1)
    return numerics.store(mixes.post[..., None] * output.astype(jnp.float32)[:, None, :] + kept)


def head_weights(streams: Array, params: HeadMixParams, config: ModelConfig) -> Array:
    """Collapse weights of the non-shifted variant's head (model.md 3.4)."""
    terms = _scaled_product(streams, params.fn, config.rms_norm_eps)
    return jax.nn.sigmoid(terms * params.scale + params.base) + config.hc_eps
