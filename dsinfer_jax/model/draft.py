"""DSpark: the draft block that proposes the next tokens, and its two small heads (speculative.md 2,
3).

Every processed position leaves a *main key* per draft stage, made from what the backbone's target
layers saw. A draft block embeds the last token and `block_size - 1` noise tokens, attends from all
of them to the main keys of the last window and to the whole block, and predicts one token per row.
A first-order head then corrects each prediction by the token before it; a confidence head estimates
its acceptance without seeing it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.kernels.sparse_attention import sparse_attention
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.attention import low_rank_query, output_projection, window_keys_of
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.company import ALONE, Company, RowNames
from dsinfer_jax.model.hyper_connection import collapse
from dsinfer_jax.model.numerics import (
    Numerics,
    product_float,
    product_fp8,
    rms_norm,
    rows_product,
)
from dsinfer_jax.model.observe import Observe, unobserved
from dsinfer_jax.model.params import DraftParams, Params, at_layer
from dsinfer_jax.model.plan import RowIndex
from dsinfer_jax.model.rotary import inverse_frequencies, rotate
from dsinfer_jax.model.trunk import (
    Trunk,
    entry_mixes,
    expert_half,
    first_trunk,
    sublayer_input,
    write_back,
)

Array = jax.Array
WINDOW_RATIO = 0  # draft stages rotate as layers without compression
LOGIT_CLAMP = 60.0


@register_dataclass
@dataclass(frozen=True)
class DraftResult:
    """What a draft block proposes for each slot."""

    tokens: Array  # [slots, block] int32
    logits: Array  # [slots, block, vocab] float32: the law each token was chosen from, unfiltered
    confidences: Array  # [slots, block] float32: estimated acceptance of each token


def store_main_keys(
    features: Array,
    params: DraftParams,
    cache: Cache,
    index: RowIndex,
    step_index: RowIndex,
    consumer: bool,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
    company: Company = ALONE,
) -> Cache:
    """Leave each row's main keys in the draft rings of its slot.

    Args:
        features: [rows, targets * hidden].
        index, step_index: of these rows, and of all rows of the step.
        consumer: the rows are those of the consumer half.
    """
    assert cache.draft_window is not None
    projected = product_fp8(features, params.main_proj, numerics)
    hidden = rms_norm(projected, params.main_norm, config.rms_norm_eps, numerics)
    hidden = observe("main_hidden", -1, hidden)
    positions = jnp.maximum(index.positions, 0)
    frequencies = inverse_frequencies(config, WINDOW_RATIO)
    slots, ring = cache.draft_window.codes.shape[1:3]
    slot, place = step_index.ring_place(ring, slots)
    window = cache.draft_window
    for stage in range(window.codes.shape[0]):
        attention = at_layer(params.layers.attention, stage)
        keys = window_keys_of(hidden, positions, attention, frequencies, config, numerics)
        encoded = caches.encode_window(keys, numerics)
        observe("main_key", stage, caches.decode(encoded, numerics))
        encoded = company.step_rows(encoded, consumer)
        window = jax.tree.map(
            lambda leaf, rows, at=stage: leaf.at[at, slot, place].set(rows, mode="drop"),
            window,
            encoded,
        )
    return replace(cache, draft_window=window)


def draft_block(
    params: Params,
    cache: Cache,
    anchors: Array,
    last_positions: Array,
    choose: Callable[[Array, Array], Array],
    temperatures: Array,
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe = unobserved,
    company: Company = ALONE,
) -> DraftResult:
    """Propose `block_size` tokens for every slot.

    Args:
        anchors: [slots] int32, the last token of each sequence, not yet processed by the backbone.
        last_positions: [slots] int32, position of the last processed token (the anchor's minus
            one);
            below 0 for idle slots.
        choose: (logits [slots, vocab], place) -> tokens [slots]: how a token is taken from its law.
        temperatures: [block] float32, of the confidences, one per place.
    """
    draft, settings = params.draft, config.draft
    assert draft is not None and settings is not None and cache.draft_window is not None
    slots, block = anchors.shape[0], settings.block_size
    offset = jnp.arange(block, dtype=jnp.int32)
    tokens = jnp.where(offset == 0, anchors[:, None], settings.noise_token_id).reshape(-1)
    active = jnp.repeat(last_positions >= 0, block)
    positions = (jnp.maximum(last_positions, 0)[:, None] + 1 + offset).reshape(-1)

    trunk = first_trunk(params.embed[tokens].astype(numerics.dtype), config)
    reach = block_reach(last_positions, block, cache.draft_window.codes.shape[2], config)
    for stage in range(settings.layers):
        trunk = draft_stage(
            trunk, stage, draft, cache, RowNames(positions, tokens), active, reach, config,
            numerics, observe, company,
        )  # fmt: skip
    hidden = observe("draft_hidden", -1, collapse(trunk.streams, trunk.pre, numerics))
    normed = rms_norm(hidden, draft.norm, config.rms_norm_eps, numerics)
    base_logits = observe("base_logits", -1, product_float(normed, params.head, numerics))
    by_place = (
        base_logits.reshape(slots, block, -1).swapaxes(0, 1),
        hidden.reshape(slots, block, -1).swapaxes(0, 1),
        offset,
        temperatures,
    )

    def one_place(previous: Array, at: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        base, hidden, place, temperature = at
        embedded = draft.markov_embed[previous]
        logits = base + product_float(embedded, draft.markov_head, numerics)
        confidence = acceptance(hidden, embedded, draft.confidence, temperature, numerics)
        token = choose(logits, place)
        return token, (token, logits, confidence)

    _, (chosen, logits, confidences) = lax.scan(one_place, anchors, by_place)
    return DraftResult(chosen.T, logits.swapaxes(0, 1), confidences.T)


def acceptance(
    hidden: Array, markov: Array, weight: Array, temperature: Array, numerics: Numerics
) -> Array:
    """Confidence [rows] from the collapse before its norm and the Markov embedding, in that
    order."""
    features = jnp.concatenate([hidden.astype(numerics.dtype), markov.astype(numerics.dtype)], -1)
    logit = rows_product(features, weight.astype(numerics.dtype))[:, 0] / temperature
    return jax.nn.sigmoid(jnp.clip(logit, -LOGIT_CLAMP, LOGIT_CLAMP))


def block_reach(
    last_positions: Array, block: int, ring: int, config: ModelConfig
) -> tuple[Array, Array]:
    """Keys of each draft row: (place in the pool, visible) [rows, window + block].

    The pool is the draft rings of all slots, then the block's rows. All rows of a block see the
    same main keys, and each other, later ones included.
    """
    slots = last_positions.shape[0]
    window = config.sliding_window
    distance = jnp.arange(window - 1, -1, -1, dtype=jnp.int32)
    position = last_positions[:, None] - distance  # [slots, window]
    slot = jnp.arange(slots, dtype=jnp.int32)[:, None]
    rows = slots * ring + slot * block + jnp.arange(block, dtype=jnp.int32)
    place = jnp.concatenate([slot * ring + position % ring, rows], axis=1)
    visible = jnp.concatenate([position >= 0, jnp.ones((slots, block), bool)], axis=1)
    return jnp.repeat(place, block, axis=0), jnp.repeat(visible, block, axis=0)


def draft_stage(
    trunk: Trunk,
    stage: int,
    params: DraftParams,
    cache: Cache,
    names: RowNames,
    active: Array,
    reach: tuple[Array, Array],
    config: ModelConfig,
    numerics: Numerics,
    observe: Observe,
    company: Company,
) -> Trunk:
    """One draft stage: a backbone layer whose window is the main keys and the block itself."""
    assert config.draft is not None and cache.draft_window is not None
    weights, positions = at_layer(params.layers, stage), names.positions
    attention, frequencies = weights.attention, inverse_frequencies(config, WINDOW_RATIO)

    mixes = entry_mixes(trunk, weights.hc_attn, "attn", config, observe, stage)
    h = sublayer_input(trunk, weights.attn_norm, weights.hc_attn, config, numerics)
    h = observe("attn_in", stage, h)
    query = low_rank_query(h, attention, config, numerics)
    heads = product_fp8(query, attention.wq_b, numerics)
    heads = heads.reshape(-1, config.num_attention_heads, config.head_dim)
    heads = numerics.store(rotate(heads, positions, frequencies))
    keys = window_keys_of(h, positions, attention, frequencies, config, numerics)
    keys = caches.decode(caches.encode_window(keys, numerics), numerics)
    keys = observe("draft_kv", stage, keys)
    rings = at_layer(cache.draft_window, stage)
    main_keys = caches.decode(rings, numerics).reshape(-1, config.head_dim)
    context = sparse_attention(
        heads, jnp.concatenate([main_keys, keys]), *reach, None,
        lambda stored: caches.decode(stored, numerics), attention.attn_sink,
        config.head_dim**-0.5, numerics.attention_weights,
    )  # fmt: skip
    y = output_projection(
        context, positions, attention, frequencies, stage, config, numerics, observe
    )
    trunk = write_back(observe("attn_out", stage, y), trunk, mixes, numerics)
    trunk, _ = expert_half(
        trunk, stage, weights, params.experts, config.draft.experts_per_token, active,
        jnp.zeros_like(active), config, numerics, observe, stage, company, names, True,
    )  # fmt: skip
    return trunk
