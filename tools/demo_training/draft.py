"""The draft block in trainable form: many blocks of every row at once (speculative.md 2, 3).

A block begins at an *anchor*, a row of a batch: the anchor's token is embedded, noise follows, and
the block's places predict the tokens after it. The target runs once over the whole batch; its rows
give the features before each anchor and the laws that the block is to meet.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from demo_training.model import FAR, Batch, expert_half, softmax_with_sink
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.attention import low_rank_query, output_projection, window_keys_of
from dsinfer_jax.model.draft import WINDOW_RATIO
from dsinfer_jax.model.hyper_connection import collapse
from dsinfer_jax.model.numerics import EXACT, product_float, product_fp8, rms_norm
from dsinfer_jax.model.observe import unobserved
from dsinfer_jax.model.params import DraftParams, Params, at_layer
from dsinfer_jax.model.rotary import inverse_frequencies, rotate
from dsinfer_jax.model.trunk import Trunk, entry_mixes, first_trunk, sublayer_input, write_back

Array = jax.Array
_EXPERT_SLOTS = 4.0  # as in `model.Form`; noise rows begin alike and choose alike


class Blocks(NamedTuple):
    """Where blocks are, and what they are to say.

    Attributes:
        anchors: [batch, blocks] int32, rows.
        counts: [batch, blocks, places] bool: the place predicts a token of an answer.
        tokens: [batch, blocks, places + 1] int32, the anchor's token and the true ones after it.
    """

    anchors: Array
    counts: Array
    tokens: Array


class Laws(NamedTuple):
    """What blocks say."""

    logits: Array  # [batch, blocks, places, vocab]
    confidences: Array  # [batch, blocks, places], logits of the estimated acceptance
    expert_load: Array  # [stages, experts] share of pairs
    dropped: Array  # []


def blocks_of(batch: Batch, count: int, places: int, key: Array) -> Blocks:
    """So many blocks in every row at random anchors within answers."""
    token_ids, weight = batch.of_kept(batch.token_ids), batch.of_kept(batch.loss_weight)
    length = token_ids.shape[1]
    rows = jnp.arange(length)
    answered = (weight == 1) & (rows < length - places)
    lottery = jnp.where(answered, jax.random.uniform(key, answered.shape), -1.0)
    anchors = lax.top_k(lottery, count)[1]
    following = anchors[..., None] + jnp.arange(places + 1)
    said = _at(weight, following[..., :-1]) == 1
    drawn = jnp.take_along_axis(answered, anchors, axis=1)[..., None]
    counts = drawn & (jnp.cumprod(said, axis=-1) > 0)
    return Blocks(anchors, counts, _at(token_ids, following))


def laws(
    params: Params, features: Array, batch: Batch, blocks: Blocks, config: ModelConfig
) -> Laws:
    """What every block says when the tokens before each place are the true ones.

    Args:
        features: [batch, rows, targets * hidden] of the kept rows.
    """
    draft, settings = params.draft, config.draft
    assert draft is not None and settings is not None
    size, count, places = blocks.counts.shape
    positions = batch.of_kept(batch.positions)
    anchor_positions = jnp.take_along_axis(positions, blocks.anchors, axis=1)
    block_positions = (anchor_positions[..., None] + jnp.arange(places)).reshape(-1)
    before = blocks.anchors[..., None] - jnp.arange(config.sliding_window, 0, -1)  # oldest first
    document = batch.of_kept(batch.document)
    own = jnp.take_along_axis(document, blocks.anchors, axis=1)[..., None]
    visible = (before >= 0) & (_at(document, jnp.maximum(before, 0)) == own)

    hidden = product_fp8(features.reshape(-1, features.shape[-1]), draft.main_proj, EXACT)
    hidden = rms_norm(hidden, draft.main_norm, config.rms_norm_eps, EXACT)
    noise = jnp.full((size, count, places - 1), settings.noise_token_id)
    tokens = jnp.concatenate([blocks.tokens[..., :1], noise], axis=-1)
    trunk = first_trunk(params.embed[tokens.reshape(-1)], config)
    valid = jnp.repeat(blocks.counts[..., 0].reshape(-1), places)
    loads, dropped = [], []
    for stage in range(settings.layers):
        attention = at_layer(draft.layers.attention, stage)
        frequencies = inverse_frequencies(config, WINDOW_RATIO)
        keys = window_keys_of(hidden, positions.reshape(-1), attention, frequencies, config, EXACT)
        main_keys = _at(keys.reshape(*positions.shape, -1), jnp.maximum(before, 0))
        trunk = _attend(trunk, stage, draft, main_keys, visible, block_positions, config)
        trunk, load, lost = expert_half(
            trunk, valid, at_layer(draft.layers, stage), at_layer(draft.experts, stage),
            settings.experts_per_token, _EXPERT_SLOTS, config, EXACT,
        )  # fmt: skip
        loads.append(load)
        dropped.append(lost)
    last = collapse(trunk.streams, trunk.pre, EXACT)
    normed = rms_norm(last, draft.norm, config.rms_norm_eps, EXACT)
    markov = draft.markov_embed[blocks.tokens[..., :-1].reshape(-1)]
    logits = product_float(normed, params.head, EXACT)
    logits = logits + product_float(markov, draft.markov_head, EXACT)
    confidences = product_float(jnp.concatenate([last, markov], axis=-1), draft.confidence, EXACT)
    return Laws(
        logits.reshape(size, count, places, -1),
        confidences.reshape(size, count, places),
        jnp.stack(loads),
        jnp.mean(jnp.stack(dropped)),
    )


def _at(leaf: Array, rows: Array) -> Array:
    """Rows of every batch entry: [batch, length, ...] at rows [batch, n, ...]."""
    return jax.vmap(lambda one, places: one[places])(leaf, rows)


def _attend(
    trunk: Trunk,
    stage: int,
    draft: DraftParams,
    main_keys: Array,
    visible: Array,
    positions: Array,
    config: ModelConfig,
) -> Trunk:
    """The first half of a stage: every place sees the window before the anchor and its block.

    Args:
        main_keys: [batch, blocks, window, head_dim], `visible` [batch, blocks, window].
        positions: [rows] of the places.
    """
    weights = at_layer(draft.layers, stage)
    attention, frequencies = weights.attention, inverse_frequencies(config, WINDOW_RATIO)
    size, count = visible.shape[:2]
    mixes = entry_mixes(trunk, weights.hc_attn, "attn", config, unobserved, stage)
    h = sublayer_input(trunk, weights.attn_norm, weights.hc_attn, config, EXACT)
    query = low_rank_query(h, attention, config, EXACT)
    heads = product_fp8(query, attention.wq_b, EXACT)
    heads = heads.reshape(-1, config.num_attention_heads, config.head_dim)
    heads = rotate(heads, positions, frequencies) * config.head_dim**-0.5
    heads = heads.reshape(size, count, -1, *heads.shape[1:])
    places = heads.shape[2]
    own = window_keys_of(h, positions, attention, frequencies, config, EXACT)
    keys = jnp.concatenate([main_keys, own.reshape(size, count, places, -1)], axis=2)
    open_keys = jnp.concatenate([visible, jnp.ones((size, count, places), bool)], axis=2)
    scores = jnp.einsum("bnqhd,bnkd->bnqhk", heads, keys)
    scores = jnp.where(open_keys[:, :, None, None], scores, FAR)
    (weight,), total = softmax_with_sink([scores], attention.attn_sink)
    context = jnp.einsum("bnqhk,bnkd->bnqhd", weight, keys) / total[..., None]
    y = output_projection(
        context.reshape(-1, *context.shape[3:]), positions, attention, frequencies, stage, config,
        EXACT, unobserved,
    )  # fmt: skip
    return write_back(y, trunk, mixes, EXACT)
