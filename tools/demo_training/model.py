"""The model in trainable form: whole documents at once, float weights, hard choices made smooth.

Everything that works row by row is the engine's own code (`dsinfer_jax.model`) in float32. Three
things have a form of their own here, because the engine's reads caches and leaves out what is not
chosen: attention over a whole batch of rows, the choice of keys with a loss that teaches the
indexer, and experts in slots of fixed size.

A batch is [batch, length] tokens; a row holds documents one after another, each beginning at an
even place, so that pairs of ratio 2 never cross documents. Of long rows the consumer half may run
a few only, as the engine's compact truncation does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass

from demo_training.rounding import ROUNDED, as_compressed_keys, as_index_values, as_window_keys
from dsinfer_jax.config import LayerSpec, ModelConfig
from dsinfer_jax.model.attention import low_rank_query, output_projection, window_keys_of
from dsinfer_jax.model.compressor import pool_pair
from dsinfer_jax.model.engram import engram, fold_tokens, table_rows
from dsinfer_jax.model.forward import embed, head
from dsinfer_jax.model.moe import Routing, route, router_scores, shared_expert, swiglu
from dsinfer_jax.model.numerics import (
    EXACT,
    Numerics,
    product_bf16,
    product_float,
    product_fp8,
    rms_norm,
)
from dsinfer_jax.model.observe import unobserved
from dsinfer_jax.model.params import ExpertParams, LayerParams, Params, at_layer
from dsinfer_jax.model.rotary import inverse_frequencies, rotate
from dsinfer_jax.model.trunk import Trunk, entry_mixes, first_trunk, sublayer_input, write_back

Array = jax.Array
CHUNK = 128  # query rows at a time, so that scores stay in a processor's cache
_ALL_SLOTS = 6.0  # rows that an expert takes at most where few rows run, nearly all of them
FAR = -1e30  # a logit that is never chosen; finite, so that gradients are


@register_dataclass
@dataclass(frozen=True)
class Batch:
    """Rows of documents.

    Attributes:
        token_ids: [batch, length] int32.
        positions: [batch, length] int32, from 0 in each document.
        document: [batch, length] int32, equal within a document; -1 on padding.
        loss_weight: [batch, length] float32, of predicting the *next* token.
        kept: [batch, n] int32, consecutive places that enter the consumer half, n a multiple of the
            window; None: all.
    """

    token_ids: Array
    positions: Array
    document: Array
    loss_weight: Array
    kept: Array | None = None

    def of_kept(self, leaf: Array) -> Array:
        """What the kept places have: [batch, length, ...] -> [batch, n, ...]."""
        if self.kept is None:
            return leaf
        index = self.kept.reshape(*self.kept.shape, *[1] * (leaf.ndim - 2))
        return jnp.take_along_axis(leaf, index, axis=1)


@dataclass(frozen=True)
class Form:
    """How hard choices are made.

    Attributes:
        sparse: attend to the chosen keys only; otherwise to all, while the indexer learns.
        expert_slots: rows that an expert takes, as a multiple of its fair share; the rest is lost.
        rounded: cached keys and what enters products have the values of their stored formats.
    """

    sparse: bool
    expert_slots: float = 1.5
    rounded: bool = False

    @property
    def numerics(self) -> Numerics:
        return ROUNDED if self.rounded else EXACT


class Losses(NamedTuple):
    """What a forward pass says beside logits."""

    index: Array  # [] how far the indexers are from attention to all keys, in nats
    index_recall: Array  # [] share of that attention on the chosen keys; 1 where all are chosen
    expert_load: Array  # [layers, experts] share of pairs; 1 / experts when even
    dropped: Array  # [] share of pairs that found no slot


class Selection(NamedTuple):
    """Of one index source, for the layers up to the next one: all [batch, length, keys]."""

    visible: Array  # bool
    chosen: Array  # bool: of those the ones that the indexer picks; all where all are attended to
    log_scores: Array  # log-softmax of the index scores over visible keys
    candidates: Array | None  # bool


class Rows(NamedTuple):
    """The rows that a layer runs: all [batch, rows]."""

    place: Array  # int32, in the batch's rows
    positions: Array
    document: Array

    @property
    def shape(self) -> tuple[int, int]:
        size, count = self.place.shape
        return size, count


@dataclass
class Run:
    """One forward pass while it is traced."""

    batch: Batch
    rows: Rows
    config: ModelConfig
    form: Form
    trunk: Trunk
    keys: dict[int, Array] = field(default_factory=dict)  # rotated, by source [batch, keys, width]
    latents: Array | None = None  # of the last source, before rotation
    selection: Selection | None = None
    attended: list[Array] = field(default_factory=list)  # by the layers since the last index source
    index_losses: list[Array] = field(default_factory=list)
    recalls: list[Array] = field(default_factory=list)
    features: list[Array] = field(default_factory=list)  # stream means at the draft's targets


def forward(params: Params, batch: Batch, config: ModelConfig, form: Form) -> tuple[Array, Losses]:
    """Logits [batch, length, vocab] of every row, or of the kept ones, and losses.

    Args:
        params: the engine's tree with float32 matrices in the places of stored formats.
    """
    logits, losses, _ = forward_with_features(params, batch, config, form)
    return logits, losses


def forward_with_features(
    params: Params, batch: Batch, config: ModelConfig, form: Form
) -> tuple[Array, Losses, Array | None]:
    """As `forward`, and what a draft sees of the same rows: [batch, rows, targets * hidden]."""
    targets = config.draft.target_layer_ids if config.draft else ()
    size, length = batch.token_ids.shape
    valid = (batch.document >= 0).reshape(-1)
    no_image = jnp.zeros(size * length, bool)
    embedded = embed(batch.token_ids.reshape(-1), valid, params, form.numerics)
    memory_rows = _memory_rows(params, batch, config)
    place = jnp.tile(jnp.arange(length, dtype=jnp.int32), (size, 1))
    rows = Rows(place, batch.positions, batch.document)
    run = Run(batch, rows, config, form, first_trunk(embedded, config))
    loads, dropped = [], []
    for spec in config.layers:
        if spec.engram is not None:
            memory = engram(
                run.trunk.streams, memory_rows[spec.engram], no_image, params.engrams[spec.engram],
                config, form.numerics,
            )  # fmt: skip
            run.trunk = run.trunk._replace(streams=memory.streams)
        weights = at_layer(params.layers, spec.index)
        if spec.owns_kv:
            _compress(run, spec, params, weights)
        if spec.index == config.first_consumer_layer:
            _enter_consumer_half(run)
        if spec.owns_index:
            _close_selection(run)
            run.selection = _select(run, spec, params, weights)
        if spec.index in targets:
            run.features.append(jnp.mean(run.trunk.streams, axis=1))
        _attention(run, spec, weights)
        load, lost = _experts(run, spec, weights, at_layer(params.experts, spec.index))
        loads.append(load)
        dropped.append(lost)
    _close_selection(run)
    logits = head(run.trunk, params, config, form.numerics, unobserved)
    losses = Losses(
        index=jnp.mean(jnp.stack(run.index_losses)),
        index_recall=jnp.mean(jnp.stack(run.recalls)),
        expert_load=jnp.stack(loads),
        dropped=jnp.mean(jnp.stack(dropped)),
    )
    features = None
    if run.features:
        features = jnp.concatenate(run.features, axis=-1).reshape(*run.rows.shape, -1)
    return logits.reshape(*run.rows.shape, -1), losses, features


def _memory_rows(params: Params, batch: Batch, config: ModelConfig) -> tuple[Array, ...]:
    if config.engram is None or params.hashes is None:
        return ()
    count = config.engram.max_ngram_size
    tokens = [jnp.roll(batch.token_ids, back, axis=1) for back in range(count)]
    exists = batch.positions[..., None] >= jnp.arange(count)
    ngrams = fold_tokens(
        jnp.stack(tokens, axis=-1).reshape(-1, count), exists.reshape(-1, count), params.hashes
    )
    return table_rows(ngrams, params.hashes, config.engram)


def _attention_input(run: Run, weights: LayerParams) -> Array:
    numerics = run.form.numerics
    return sublayer_input(run.trunk, weights.attn_norm, weights.hc_attn, run.config, numerics)


def _compress(run: Run, spec: LayerSpec, params: Params, weights: LayerParams) -> None:
    """Compressed keys of a source: of every row for ratio 1, of every pair for ratio 2."""
    config, batch_size = run.config, run.batch.token_ids.shape[0]
    numerics = run.form.numerics
    assert params.compressors is not None
    h = _attention_input(run, weights)
    source = config.kv_source_layer_ids.index(spec.index)
    values = product_float(h, params.compressors.wkv[source], numerics)
    if spec.ratio == 2:
        assert params.compressors.wgate is not None
        number = config.kv_sources(2).index(spec.index)
        gates = product_float(h, params.compressors.wgate[number], numerics)
        state = jnp.stack([gates, values], axis=1)  # [rows, 2, head_dim]
        values = pool_pair(state[0::2], state[1::2])
    latents = rms_norm(values, params.compressors.norm[source], config.rms_norm_eps, numerics)
    run.latents = latents.reshape(batch_size, -1, config.head_dim)
    keys = _rotated_keys(run, run.latents, spec)
    run.keys[spec.index] = as_compressed_keys(keys, config) if run.form.rounded else keys


def _enter_consumer_half(run: Run) -> None:
    """Go on with the kept rows; compressed keys are of all rows by now."""
    batch, size = run.batch, run.batch.token_ids.shape[0]
    if batch.kept is None:
        return
    run.rows = Rows(*(batch.of_kept(leaf) for leaf in run.rows))

    def kept(leaf: Array) -> Array:
        by_row = leaf.reshape(size, -1, *leaf.shape[1:])
        return batch.of_kept(by_row).reshape(-1, *leaf.shape[1:])

    run.trunk = Trunk(*(kept(leaf) for leaf in run.trunk))
    _close_selection(run)
    run.selection = None


def _rotated_keys(run: Run, values: Array, spec: LayerSpec) -> Array:
    """Keys [batch, keys, width] rotated at the first position of their groups."""
    positions = run.batch.positions[:, :: spec.ratio].reshape(-1)
    frequencies = inverse_frequencies(run.config, spec.ratio)
    flat = rotate(values.reshape(-1, values.shape[-1]), positions, frequencies)
    return flat.reshape(values.shape)


def _chunks(run: Run, ratio: int) -> Iterator[tuple[slice, int]]:
    """Slices of the run's rows, and how many keys the last of each may see."""
    length = run.batch.token_ids.shape[1]
    count = run.rows.place.shape[1]
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        yield slice(start, stop), (stop if count == length else length) // ratio


def _split(leaf: Array) -> Sequence[Array]:
    """The rows of `_chunks`. As one operation, whose gradient is one concatenation."""
    count = leaf.shape[1]
    return lax.split(leaf, [min(CHUNK, count - start) for start in range(0, count, CHUNK)], axis=1)


def _visible(run: Run, some: slice, keys: int, ratio: int) -> Array:
    """Which of the first keys some rows may see: [batch, rows, keys] bool.

    Those of complete groups of their own document, up to themselves.
    """
    rows = run.rows
    last = jnp.arange(ratio - 1, keys * ratio, ratio)
    of_key = run.batch.document[:, None, ratio - 1 :: ratio][..., :keys]
    of_row = rows.document[:, some, None]
    return (of_row == of_key) & (last <= rows.place[:, some, None]) & (of_row >= 0)


def _widened(parts: list[Array], value: float | bool) -> Array:
    """[batch, rows, keys] parts one under another, filled up to the keys of the widest."""
    keys = max(part.shape[-1] for part in parts)
    filled = [
        jnp.pad(part, ((0, 0), (0, 0), (0, keys - part.shape[-1])), constant_values=value)
        for part in parts
    ]
    return jnp.concatenate(filled, axis=1)


def _select(run: Run, spec: LayerSpec, params: Params, weights: LayerParams) -> Selection:
    """Index scores and what they choose. No gradient flows into the rest of the model."""
    config, (size, count) = run.config, run.rows.shape
    numerics = run.form.numerics
    assert params.indexers is not None and params.index_keys is not None
    assert run.latents is not None
    h = lax.stop_gradient(_attention_input(run, weights))
    query = lax.stop_gradient(low_rank_query(h, weights.attention, config, numerics))
    source = config.index_source_layer_ids.index(spec.index)
    heads = product_fp8(query, at_layer(params.indexers.wq_b, source), numerics)
    heads = heads.reshape(-1, config.index_n_heads, config.index_head_dim)
    frequencies = inverse_frequencies(config, spec.ratio)
    heads = rotate(heads, run.rows.positions.reshape(-1), frequencies)
    heads = heads.reshape(size, count, *heads.shape[1:])
    head_weights = product_bf16(h, params.indexers.weights_proj[source], numerics)
    head_weights = head_weights.reshape(size, count, -1)

    number = config.index_k_source_layer_ids.index(spec.index_k_source)
    latents = lax.stop_gradient(run.latents).reshape(-1, config.head_dim)
    keys = product_bf16(latents, params.index_keys.wk[number], numerics)
    keys = rms_norm(keys, params.index_keys.k_norm[number], config.rms_norm_eps, numerics)
    keys = _rotated_keys(run, keys.reshape(size, -1, config.index_head_dim), spec)

    if run.form.rounded:
        heads, keys = as_index_values(heads), as_index_values(keys)

    all_scores, all_visible = [], []
    pieces = zip(_chunks(run, spec.ratio), _split(heads), _split(head_weights))
    for (some, seen), some_heads, some_weights in pieces:
        products = jnp.einsum("bthd,bkd->bthk", some_heads, keys[:, :seen])
        scores = jnp.einsum("bthk,bth->btk", jnp.maximum(products, 0), some_weights)
        all_visible.append(_visible(run, some, seen, spec.ratio))
        all_scores.append(jnp.where(all_visible[-1], scores, FAR))
    scores, visible = _widened(all_scores, FAR), _widened(all_visible, False)
    log_scores = jax.nn.log_softmax(scores, axis=-1)
    if not run.form.sparse:
        return Selection(visible, visible, log_scores, None)
    candidates = run.selection.candidates if run.selection else None
    allowed = visible
    if spec.candidates == "restricted":
        assert candidates is not None
        allowed = visible & candidates
    chosen = allowed & _largest(jnp.where(allowed, scores, FAR), config.index_topk)
    if spec.candidates == "source":
        candidates = _candidates(scores, visible, config)
    return Selection(visible, chosen, log_scores, candidates)


def _largest(scores: Array, count: int) -> Array:
    """The `count` largest of the last axis, the first of equals: bool like `scores`."""
    if count >= scores.shape[-1]:
        return jnp.ones(scores.shape, bool)
    scores = lax.stop_gradient(scores) + 0.0
    threshold = lax.top_k(scores, count)[0][..., -1:]
    above, equal = scores > threshold, scores == threshold
    wanted = count - jnp.sum(above, axis=-1, keepdims=True)
    return above | (equal & (jnp.cumsum(equal, axis=-1) <= wanted))


def _candidates(scores: Array, visible: Array, config: ModelConfig) -> Array:
    """Keys of the best blocks; a block counts as its best key, the newest one always stays.

    Blocks are counted from the beginning of the row, which is the document's only if it is alone.
    """
    size, keys = config.candidate_block_size, scores.shape[-1]
    padding = ((0, 0), (0, 0), (0, -keys % size))
    padded = jnp.pad(scores, padding, constant_values=FAR)
    maxima = jnp.max(padded.reshape(*scores.shape[:2], -1, size), axis=-1)
    seen = jnp.pad(visible, padding)
    last_visible = jnp.max(jnp.where(seen, jnp.arange(seen.shape[-1]), -1), axis=-1)
    newest = jnp.arange(maxima.shape[-1]) == (last_visible // size)[..., None]
    kept = _largest(jnp.where(newest, jnp.inf, maxima), config.candidate_topk_blocks)
    return jnp.repeat(kept, size, axis=-1)[..., :keys]


def _close_selection(run: Run) -> None:
    """Compare the last indexer with the attention of the layers that used it."""
    if run.selection is None or not run.attended:
        return
    share = lax.stop_gradient(sum(run.attended[1:], start=run.attended[0]))
    mass = jnp.sum(share, axis=-1, keepdims=True)
    share = share / jnp.maximum(mass, 1e-12)
    matters = (mass[..., 0] > 1e-12).astype(jnp.float32)
    count = jnp.maximum(jnp.sum(matters), 1)
    entropy = -jnp.sum(share * jnp.log(jnp.maximum(share, 1e-30)), axis=-1)
    cross = -jnp.sum(jnp.where(share > 0, share * run.selection.log_scores, 0), axis=-1)
    run.index_losses.append(jnp.sum((cross - entropy) * matters) / count)
    kept = jnp.sum(jnp.where(run.selection.chosen, share, 0), axis=-1)
    run.recalls.append(jnp.sum(kept * matters) / count)
    run.attended = []


def _attention(run: Run, spec: LayerSpec, weights: LayerParams) -> None:
    config, (size, count) = run.config, run.rows.shape
    numerics = run.form.numerics
    params, positions = weights.attention, run.rows.positions.reshape(-1)
    mixes = entry_mixes(run.trunk, weights.hc_attn, "attn", config, unobserved, spec.index)
    h = _attention_input(run, weights)
    frequencies = inverse_frequencies(config, spec.ratio)
    query = low_rank_query(h, params, config, numerics)
    heads = product_fp8(query, params.wq_b, numerics)
    heads = heads.reshape(-1, config.num_attention_heads, config.head_dim)
    heads = rotate(heads, positions, frequencies) * config.head_dim**-0.5
    heads = heads.reshape(size, count, *heads.shape[1:])
    window = window_keys_of(h, positions, params, frequencies, config, numerics)
    window = window.reshape(size, count, -1)
    if run.form.rounded:
        window = as_window_keys(window)

    near = _window_scores(heads, window, run.rows.document, config.sliding_window)
    near_weights, far_values, totals, attended = [], [], [], []
    chunks = zip(_chunks(run, spec.ratio or 1), _split(near), _split(heads))
    for (some, seen), some_near, some_heads in chunks:
        pieces = [some_near]
        if spec.ratio:
            assert run.selection is not None
            open_keys = run.selection.chosen if run.form.sparse else run.selection.visible
            keys = run.keys[spec.kv_source][:, :seen]
            scores = jnp.einsum("bthd,bkd->bthk", some_heads, keys)
            pieces.append(jnp.where(open_keys[:, some, None, :seen], scores, FAR))
            visible = run.selection.visible[:, some, None, :seen]
            whole = [some_near, jnp.where(visible, scores, FAR)]
            attended.append(_attention_of_all(whole, params.attn_sink))
        (near_weight, *far_weight), total = softmax_with_sink(pieces, params.attn_sink)
        near_weights.append(near_weight)
        totals.append(total)
        for weight in far_weight:
            far_values.append(jnp.einsum("bthk,bkd->bthd", weight, keys))
    context = _window_values(jnp.concatenate(near_weights, axis=1), window)
    if spec.ratio:
        context = context + jnp.concatenate(far_values, axis=1)
        run.attended.append(_widened(attended, 0.0))
    context = context / jnp.concatenate(totals, axis=1)[..., None]
    y = output_projection(
        context.reshape(-1, *context.shape[2:]), positions, params, frequencies, spec.index,
        config, numerics, unobserved,
    )  # fmt: skip
    run.trunk = write_back(y, run.trunk, mixes, numerics)


def _attention_of_all(pieces: list[Array], sink: Array) -> Array:
    """Squares of the attention to compressed keys if none were left out: [batch, rows, keys].

    They are summed over heads. A head that attends to one key then outweighs heads that spread over
    thousands, which lose little by any choice. All keys count, also where only chosen ones are
    attended to: of those alone the indexers could not learn which keys they miss.
    """
    (_, far), total = softmax_with_sink(*lax.stop_gradient((pieces, sink)))
    return jnp.einsum("bthk,bth->btk", far * far, 1 / (total * total))


def softmax_with_sink(pieces: list[Array], sink: Array) -> tuple[list[Array], Array]:
    """One softmax over all pieces [batch, length, heads, n] and a sink logit without a value.

    Returns:
        Weights like the pieces, and what they are to be divided by [batch, length, heads].
    """
    maxima = [jnp.max(piece, axis=-1) for piece in pieces]
    largest = lax.stop_gradient(jnp.maximum(jnp.max(jnp.stack(maxima), axis=0), sink))
    weights = [jnp.exp(piece - largest[..., None]) for piece in pieces]
    total = jnp.exp(sink - largest)
    for weight in weights:  # products, because sums over a long last axis are slow on CPUs
        total = total + weight @ jnp.ones(weight.shape[-1])
    return weights, total


def _bands(keys: Array, window: int) -> Array:
    """[batch, length, width] -> [batch, blocks, 2 window, width]: each block after the one before.

    Before the first block lie zeros.
    """
    blocks = keys.reshape(keys.shape[0], -1, window, keys.shape[-1])
    before = jnp.pad(blocks, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1]
    return jnp.concatenate([before, blocks], axis=2)


def _window_scores(heads: Array, keys: Array, documents: Array, window: int) -> Array:
    """Logits [batch, length, heads, 2 window] of each row's band; `window` divides the length."""
    size, length, count, width = heads.shape
    blocked = heads.reshape(size, -1, window, count, width)
    scores = jnp.einsum("bnqhd,bnkd->bnqhk", blocked, _bands(keys, window))
    distance = jnp.arange(window)[:, None] + window - jnp.arange(2 * window)  # row minus key
    near = (distance >= 0) & (distance < window)
    document = (documents + 1)[..., None]  # 0: padding, and what lies before the row
    of_row = document.reshape(size, -1, window, 1)
    of_key = jnp.swapaxes(_bands(document, window), 2, 3)
    open_keys = near & (of_row == of_key) & (of_row > 0)
    return jnp.where(open_keys[:, :, :, None], scores, FAR).reshape(size, length, count, -1)


def _window_values(weights: Array, keys: Array) -> Array:
    size, length, count, band = weights.shape
    blocked = weights.reshape(size, -1, band // 2, count, band)
    values = jnp.einsum("bnqhk,bnkd->bnqhd", blocked, _bands(keys, band // 2))
    return values.reshape(size, length, count, -1)


def _experts(
    run: Run, spec: LayerSpec, weights: LayerParams, experts: ExpertParams
) -> tuple[Array, Array]:
    """The mixture sub-layer; returns each expert's share of the pairs and the share dropped."""
    valid = (run.rows.document >= 0).reshape(-1)
    few = spec.consumer and run.batch.kept is not None  # alike, and cheap
    slots = _ALL_SLOTS if few else run.form.expert_slots
    run.trunk, load, dropped = expert_half(
        run.trunk, valid, weights, experts, run.config.num_experts_per_tok, slots, run.config,
        run.form.numerics,
    )  # fmt: skip
    return load, dropped


def expert_half(
    trunk: Trunk,
    valid: Array,
    weights: LayerParams,
    experts: ExpertParams,
    experts_per_token: int,
    expert_slots: float,
    config: ModelConfig,
    numerics: Numerics,
) -> tuple[Trunk, Array, Array]:
    """The second half of a layer: the trunk after it, each expert's share, the share dropped."""
    mixes = entry_mixes(trunk, weights.hc_ffn, "ffn", config, unobserved, 0)
    h = sublayer_input(trunk, weights.ffn_norm, weights.hc_ffn, config, numerics)
    scores = router_scores(product_float(h, weights.gate.weight, numerics))
    routing = route(
        scores, lax.stop_gradient(weights.gate.bias), experts_per_token,
        config.routed_scaling_factor,
    )  # fmt: skip
    y, load, dropped = _routed(h, valid, routing, experts, expert_slots, config, numerics)
    if weights.shared_expert is not None:
        y = y + shared_expert(h, weights.shared_expert, config, numerics)
    return write_back(y, trunk, mixes, numerics), load, dropped


def _routed(
    h: Array,
    valid: Array,
    routing: Routing,
    experts: ExpertParams,
    expert_slots: float,
    config: ModelConfig,
    numerics: Numerics,
) -> tuple[Array, Array, Array]:
    """Pairs go to slots of their experts in order; what does not fit is lost, in training only."""
    chosen, weights = routing
    w1, w2, w3 = (jnp.asarray(getattr(experts, name)) for name in ("w1", "w2", "w3"))
    rows, choices = chosen.shape
    count = w1.shape[0]
    slots = min(int(rows * choices / count * expert_slots) // 8 * 8 + 8, rows)
    pair_expert = jnp.where(valid[:, None], chosen, count).reshape(-1)
    member = pair_expert[:, None] == jnp.arange(count)
    rank = jnp.sum(jnp.where(member, jnp.cumsum(member, axis=0), 0), axis=1) - 1
    fits = (pair_expert < count) & (rank < slots)
    place = jnp.where(fits, pair_expert * slots + rank, count * slots)
    pairs = jnp.arange(rows * choices)
    source = jnp.full(count * slots, rows * choices).at[place].set(pairs, mode="drop")
    h = numerics.quantised(h)
    x = h.at[source // choices].get(mode="fill", fill_value=0).reshape(count, slots, -1)

    def product(x: Array, matrix: Array) -> Array:
        return jnp.einsum("esi,eoi->eso", x, matrix)

    of_slots = weights.reshape(-1).at[source].get(mode="fill", fill_value=0)
    hidden = swiglu(product(x, w1), product(x, w3), config.swiglu_limit)
    hidden = hidden * of_slots.reshape(count, slots, 1)
    output = product(numerics.quantised(hidden), w2).reshape(count * slots, -1)
    by_pair = output.at[place].get(mode="fill", fill_value=0)
    load = jnp.sum(member, axis=0) / jnp.maximum(jnp.sum(pair_expert < count), 1)
    dropped = jnp.mean(((pair_expert < count) & ~fits).astype(jnp.float32))
    return jnp.sum(by_pair.reshape(rows, choices, -1), axis=1), load, dropped
