"""What a step computes: the model, the sampler, verification and the next drafts, in one program.

The host learns the tokens of a step one step later. What it does not know when it hands over the
next step stays here, on the device: how far each sequence is, its newest token and its drafts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.decode_rows import DecodeRows, RaggedRows, UniformRows, admitted
from dsinfer_jax.engine.drafter import Drafter, Model, Written
from dsinfer_jax.engine.draws import Draws, idle_draws
from dsinfer_jax.engine.engine_config import DecodeForm
from dsinfer_jax.engine.packing import Packing, pack_on_device
from dsinfer_jax.engine.sampler import Proposals, Sample, sample
from dsinfer_jax.engine.sampling_params import MAX_TOP_LOGPROBS
from dsinfer_jax.engine.slot_state import SlotState, count_tokens, empty_state
from dsinfer_jax.engine.verification import (
    KEPT_DTYPE,
    accepted_drafts,
    earlier_drafts,
    proposal_counters,
)
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.company import Company
from dsinfer_jax.model.forward import StepResult, forward
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Plan, decode_plan

Array = jax.Array
Leaf = jax.Array | np.ndarray


@register_dataclass
@dataclass(frozen=True)
class EngineState:
    """What the steps keep for each slot beside the cache; donated to every step."""

    newest: Leaf  # [slots] int32: the newest token, which is not computed yet
    start: Leaf  # [slots] int32: its position
    drafts: Leaf  # [slots, places] int32: proposed to follow it
    draft_counts: Leaf  # [slots] int32: how many of them
    confidences: Leaf  # [slots, places] float32: estimates that they stay; 0 where there is none
    draft_laws: Leaf | None  # [slots, places, vocab] bf16 logits; None: drafts are certain
    sampling: SlotState
    drafter: Any


@register_dataclass
@dataclass(frozen=True)
class PrefillInputs:
    """What the host gives to a prefill step."""

    plan: Plan
    draws: Draws  # of the wanted rows
    draws_for: Leaf  # [outputs] int32: slot of each wanted row; out of range: nobody's


@register_dataclass
@dataclass(frozen=True)
class DecodeInputs:
    """What the host gives to a decode step; one entry for each slot."""

    active: Leaf  # [slots] bool: the slot decodes, unless it has ended on the device
    last: Leaf  # [slots] int32: highest position that may be computed
    draft_limits: Leaf  # [slots] int32: most drafts that may be verified
    budget: Leaf  # [1] int32: of all slots of a rank together, in a ragged program
    block_tables: Leaf  # [slots, table width] int32
    draws: Draws  # positions are the device's business


@register_dataclass
@dataclass(frozen=True)
class Outcome:
    """What the host reads of a step. A decode step samples `emitted` rows of a slot and more."""

    sample: Sample
    first_rows: Leaf  # [slots] int32: of the sample, in a decode step
    emitted: Leaf  # [slots] int32: tokens that count, of the slot's rows; 0 in a prefill step
    verified: Leaf  # [slots] int32: drafts that were tried
    drafts: Leaf  # [slots, places] int32: proposed for the next step
    draft_counts: Leaf  # [slots] int32
    confidences: Leaf  # [slots, places] float32: of these drafts
    expert_loads: Leaf  # [layers, experts] int32: rows of the backbone that have chosen each


Step = Callable[
    [Params, Cache, EngineState, Array, Array, Company], tuple[Cache, EngineState, Array]
]


def empty_engine_state(slots: int, vocab_size: int, drafter: Drafter) -> EngineState:
    """The state of an engine that has run nothing (numpy)."""
    laws = None
    if drafter.draws:
        laws = np.zeros((slots, drafter.places, vocab_size), KEPT_DTYPE)
    return EngineState(
        newest=np.zeros(slots, np.int32),
        start=np.zeros(slots, np.int32),
        drafts=np.zeros((slots, drafter.places), np.int32),
        draft_counts=np.zeros(slots, np.int32),
        confidences=np.zeros((slots, drafter.places), np.float32),
        draft_laws=laws,
        sampling=empty_state(slots, vocab_size),
        drafter=drafter.empty(slots),
    )


def idle_inputs(slots: int, table_width: int) -> DecodeInputs:
    """Inputs of a decode step in which nobody decodes (numpy)."""
    return DecodeInputs(
        active=np.zeros(slots, bool),
        last=np.zeros(slots, np.int32),
        draft_limits=np.zeros(slots, np.int32),
        budget=np.zeros(1, np.int32),
        block_tables=np.zeros((slots, table_width), np.int32),
        draws=idle_draws(slots),
    )


def prefill_step(
    packing: Packing, drafter: Drafter, config: ModelConfig, numerics: Numerics
) -> Step:
    """The function of a prefill program: (params, cache, state, packed inputs, masks, company) ->
    (cache, state, packed outcome)."""

    def step(
        params: Params, cache: Cache, state: EngineState, packed: Array, masks: Array,
        company: Company,
    ) -> tuple[Cache, EngineState, Array]:  # fmt: skip
        inputs: PrefillInputs = packing.unpack(packed)
        draws, slots = inputs.draws, jnp.asarray(inputs.draws_for)
        cache, result = forward(params, cache, inputs.plan, config, numerics, company=company)
        chosen = sample(result.logits, draws, state.sampling, masks)
        token_ids = jnp.asarray(chosen.token_ids)
        begun = jnp.zeros(len(state.newest), bool).at[slots].set(True, mode="drop")
        state = replace(
            state,
            newest=jnp.asarray(state.newest).at[slots].set(token_ids, mode="drop"),
            start=jnp.asarray(state.start).at[slots].set(draws.positions, mode="drop"),
            sampling=count_tokens(state.sampling, draws, token_ids, jnp.asarray(draws.adjusted)),
        )
        slot_draws = _by_slot(draws, slots, len(state.newest))
        newest = jnp.asarray(state.newest)
        written = Written(
            newest[:, None], jnp.where(begun, state.start, -1)[:, None], jnp.asarray(state.start),
            newest, begun, slot_draws,
        )  # fmt: skip
        ended = (newest == config.eos_token_id) & slot_draws.ends
        state = _propose(state, written, ended, drafter, Model(params, cache, company))
        nothing = jnp.zeros(len(newest), jnp.int32)
        return cache, state, _outcome(chosen, state, nothing, nothing, nothing, result)

    return step


def decode_step(
    form: DecodeForm, packing: Packing, drafter: Drafter, config: ModelConfig, numerics: Numerics
) -> Step:
    """The function of a decode program, like `prefill_step`."""

    def step(
        params: Params, cache: Cache, state: EngineState, packed: Array, masks: Array,
        company: Company,
    ) -> tuple[Cache, EngineState, Array]:  # fmt: skip
        inputs: DecodeInputs = packing.unpack(packed)
        start, newest = jnp.asarray(state.start), jnp.asarray(state.newest)
        slots = len(newest)
        width = drafter.places + 1 if form.ragged else form.rows // slots
        drafts = jnp.asarray(state.drafts)[:, : width - 1]
        running = jnp.asarray(inputs.active) & (start <= inputs.last)
        verified = _verified(form, state, inputs, running, width)
        rows: DecodeRows = UniformRows(slots, width)
        if form.ragged:
            rows = RaggedRows.of(jnp.where(running, verified + 1, 0), form.rows, width)
        plan = decode_plan(
            jnp.concatenate([newest[:, None], drafts], axis=1),
            jnp.where(running, start, -1), inputs.block_tables, config, verified + 1,
            (rows.slot, rows.place) if form.ragged else None,
        )  # fmt: skip
        cache, result = forward(params, cache, plan, config, numerics, company=company)

        row_slot, place = rows.slot, rows.place
        draws = jax.tree.map(lambda leaf: leaf[row_slot], inputs.draws)
        draws = replace(draws, positions=start[row_slot] + 1 + place)
        chosen = sample(
            result.logits, draws, state.sampling,
            rows.spread(masks.reshape(slots, drafter.places + 1, -1)),
            rows.spread(earlier_drafts(drafts, config.vocab_size)),
            _proposals(state, drafts, verified, rows),
        )  # fmt: skip
        drawn = rows.collect(jnp.asarray(chosen.token_ids), width)

        accepted = accepted_drafts(drawn, drafts, verified)
        emitted = jnp.where(running, accepted + 1, 0)
        counts = jnp.arange(width, dtype=jnp.int32) < emitted[:, None]
        last_drawn = jnp.take_along_axis(drawn, accepted[:, None], axis=1)[:, 0]
        counted = (place < emitted[row_slot]) & draws.adjusted
        state = replace(
            state,
            newest=jnp.where(running, last_drawn, newest),
            start=start + emitted,
            sampling=count_tokens(state.sampling, draws, chosen.token_ids, counted),
        )
        drawn_at = start[:, None] + 1 + jnp.arange(width, dtype=jnp.int32)
        written = Written(
            drawn, jnp.where(counts, drawn_at, -1), jnp.asarray(state.start),
            jnp.asarray(state.newest), running, inputs.draws,
        )  # fmt: skip
        if form.drafts:
            ended = jnp.any(counts & (drawn == config.eos_token_id), axis=1) & inputs.draws.ends
            state = _propose(state, written, ended, drafter, Model(params, cache, company))
        else:
            state = _without_drafts(state, written, drafter)
        return cache, state, _outcome(chosen, state, rows.first, emitted, verified, result)

    return step


def _verified(
    form: DecodeForm, state: EngineState, inputs: DecodeInputs, running: Array, width: int
) -> Array:
    """Drafts of each slot that the step verifies: [slots] int32."""
    available = jnp.minimum(state.draft_counts, inputs.last - state.start)
    available = jnp.minimum(available, jnp.minimum(inputs.draft_limits, width - 1))
    available = jnp.where(running, available, 0)
    if not form.ragged:
        return available
    return admitted(jnp.asarray(state.confidences), available, jnp.asarray(inputs.budget))


def outcome_packing(rows: int, slots: int, places: int, experts: tuple[int, int]) -> Packing:
    """The layout of the outcome of a step that samples so many rows.

    Args:
        experts: layers, and experts of a layer.
    """
    ints, floats = np.int32, np.float32
    chosen = Sample(
        token_ids=np.zeros(rows, ints),
        logprobs=np.zeros(rows, floats),
        failed=np.zeros(rows, bool),
        top_ids=np.zeros((rows, MAX_TOP_LOGPROBS), ints),
        top_logprobs=np.zeros((rows, MAX_TOP_LOGPROBS), floats),
    )
    by_slot = np.zeros(slots, ints)
    drafts, confidences = np.zeros((slots, places), ints), np.zeros((slots, places), floats)
    loads = np.zeros(experts, ints)
    return Packing(Outcome(chosen, by_slot, by_slot, by_slot, drafts, by_slot, confidences, loads))


def _proposals(
    state: EngineState, drafts: Array, verified: Array, rows: DecodeRows
) -> Proposals | None:
    """Drafts with their laws, in the rows that verify them; a slot's last row has none."""
    places = drafts.shape[1]
    if state.draft_laws is None or places == 0:
        return None
    tokens = jnp.where(jnp.arange(places) < verified[:, None], drafts, -1)
    tokens = jnp.pad(tokens, ((0, 0), (0, 1)), constant_values=-1)
    return Proposals(
        rows.spread(tokens),
        rows.spread(jnp.asarray(state.draft_laws)),
        proposal_counters(jnp.asarray(state.start)[rows.slot], rows.place),
    )


def _by_slot(draws: Draws, slots: Array, count: int) -> Draws:
    """Draws of rows as draws of the slots they are for."""
    return jax.tree.map(
        lambda leaf: (
            jnp.zeros((count, *leaf.shape[1:]), leaf.dtype).at[slots].set(leaf, mode="drop")
        ),
        draws,
    )


def _propose(
    state: EngineState, written: Written, ended: Array, drafter: Drafter, model: Model
) -> EngineState:
    """The state with drafts that follow the tokens that were just drawn.

    A slot that has `ended` gets none: nothing is verified for it (speculative.md 6.6).
    """
    with jax.named_scope("draft"):
        kept, drafts = drafter.propose(state.drafter, written, model)
    running, laws = written.running, state.draft_laws
    if drafts.laws is not None:
        assert laws is not None
        laws = jnp.where(running[:, None, None], drafts.laws, laws)
    counts = jnp.where(ended, 0, drafts.counts)
    exists = jnp.arange(drafter.places) < counts[:, None]
    confidences = jnp.where(exists, 1.0 if drafts.confidences is None else drafts.confidences, 0.0)
    return replace(
        state,
        draft_laws=laws,
        drafts=jnp.where(running[:, None], drafts.token_ids, state.drafts),
        draft_counts=jnp.where(running, counts, state.draft_counts),
        confidences=jnp.where(running[:, None], confidences, state.confidences),
        drafter=kept,
    )


def _without_drafts(state: EngineState, written: Written, drafter: Drafter) -> EngineState:
    """The state after tokens that nothing is proposed to follow."""
    running = written.running
    return replace(
        state,
        draft_counts=jnp.where(running, 0, state.draft_counts),
        confidences=jnp.where(running[:, None], 0.0, state.confidences),
        drafter=drafter.note(state.drafter, written),
    )


def _outcome(
    chosen: Sample,
    state: EngineState,
    first_rows: Array,
    emitted: Array,
    verified: Array,
    result: StepResult,
) -> Array:
    return pack_on_device(
        Outcome(
            chosen, first_rows, emitted, verified, state.drafts, state.draft_counts,
            state.confidences, result.expert_loads,
        )
    )  # fmt: skip
