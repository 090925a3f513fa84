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
from dsinfer_jax.engine.drafter import Drafter, Model, Written
from dsinfer_jax.engine.draws import Draws, idle_draws
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
from dsinfer_jax.model.forward import forward
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
    block_tables: Leaf  # [slots, table width] int32
    draws: Draws  # positions are the device's business


@register_dataclass
@dataclass(frozen=True)
class Outcome:
    """What the host reads of a step. A decode step samples `places + 1` rows for each slot."""

    sample: Sample
    emitted: Leaf  # [slots] int32: tokens that count, of the slot's rows; 0 in a prefill step
    verified: Leaf  # [slots] int32: drafts that were tried
    drafts: Leaf  # [slots, places] int32: proposed for the next step
    draft_counts: Leaf  # [slots] int32


Step = Callable[[Params, Cache, EngineState, Array, Array], tuple[Cache, EngineState, Array]]


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
        draft_laws=laws,
        sampling=empty_state(slots, vocab_size),
        drafter=drafter.empty(slots),
    )


def idle_inputs(slots: int, table_width: int) -> DecodeInputs:
    """Inputs of a decode step in which nobody decodes (numpy)."""
    return DecodeInputs(
        active=np.zeros(slots, bool),
        last=np.zeros(slots, np.int32),
        block_tables=np.zeros((slots, table_width), np.int32),
        draws=idle_draws(slots),
    )


def prefill_step(
    packing: Packing, drafter: Drafter, config: ModelConfig, numerics: Numerics
) -> Step:
    """The function of a prefill program: (params, cache, state, packed inputs, masks) ->
    (cache, state, packed outcome)."""

    def step(
        params: Params, cache: Cache, state: EngineState, packed: Array, masks: Array
    ) -> tuple[Cache, EngineState, Array]:
        inputs: PrefillInputs = packing.unpack(packed)
        draws, slots = inputs.draws, jnp.asarray(inputs.draws_for)
        cache, result = forward(params, cache, inputs.plan, config, numerics)
        chosen = sample(result.logits, draws, state.sampling, masks)
        token_ids = jnp.asarray(chosen.token_ids)
        begun = jnp.zeros(len(state.newest), bool).at[slots].set(True, mode="drop")
        state = replace(
            state,
            newest=jnp.asarray(state.newest).at[slots].set(token_ids, mode="drop"),
            start=jnp.asarray(state.start).at[slots].set(draws.positions, mode="drop"),
            sampling=count_tokens(state.sampling, draws, token_ids, jnp.asarray(draws.adjusted)),
        )
        places = jnp.where(begun, state.start, -1)[:, None]
        written = Written(
            jnp.asarray(state.newest)[:, None], places, jnp.asarray(state.start),
            jnp.asarray(state.newest), begun, _by_slot(draws, slots, len(state.newest)),
        )  # fmt: skip
        state = _propose(state, written, drafter, Model(params, cache))
        nothing = jnp.zeros(len(state.newest), jnp.int32)
        return cache, state, _outcome(chosen, state, nothing, nothing)

    return step


def decode_step(
    packing: Packing, drafter: Drafter, config: ModelConfig, numerics: Numerics
) -> Step:
    """The function of a decode program, like `prefill_step`."""
    rows_each = drafter.places + 1

    def step(
        params: Params, cache: Cache, state: EngineState, packed: Array, masks: Array
    ) -> tuple[Cache, EngineState, Array]:
        inputs: DecodeInputs = packing.unpack(packed)
        start, newest, drafts = (jnp.asarray(x) for x in (state.start, state.newest, state.drafts))
        running = jnp.asarray(inputs.active) & (start <= inputs.last)
        verified = jnp.where(running, jnp.minimum(state.draft_counts, inputs.last - start), 0)
        token_ids = jnp.concatenate([newest[:, None], drafts], axis=1)
        plan = decode_plan(
            token_ids, jnp.where(running, start, -1), inputs.block_tables, config, verified + 1
        )
        cache, result = forward(params, cache, plan, config, numerics)

        drawn_at = start[:, None] + 1 + jnp.arange(rows_each, dtype=jnp.int32)
        draws = jax.tree.map(lambda leaf: jnp.repeat(leaf, rows_each, axis=0), inputs.draws)
        draws = replace(draws, positions=drawn_at.reshape(-1))
        earlier = earlier_drafts(drafts, config.vocab_size).reshape(len(masks), drafter.places)
        proposals = _proposals(state, verified, config.vocab_size)
        chosen = sample(result.logits, draws, state.sampling, masks, earlier, proposals)
        drawn = jnp.asarray(chosen.token_ids).reshape(-1, rows_each)

        accepted = accepted_drafts(drawn, drafts, verified)
        emitted = jnp.where(running, accepted + 1, 0)
        counts = jnp.arange(rows_each, dtype=jnp.int32) < emitted[:, None]
        last_drawn = jnp.take_along_axis(drawn, accepted[:, None], axis=1)[:, 0]
        state = replace(
            state,
            newest=jnp.where(running, last_drawn, newest),
            start=start + emitted,
            sampling=count_tokens(
                state.sampling, draws, chosen.token_ids, counts.reshape(-1) & draws.adjusted
            ),
        )
        written = Written(
            drawn, jnp.where(counts, drawn_at, -1), jnp.asarray(state.start),
            jnp.asarray(state.newest), running, inputs.draws,
        )  # fmt: skip
        state = _propose(state, written, drafter, Model(params, cache))
        return cache, state, _outcome(chosen, state, emitted, verified)

    return step


def outcome_packing(rows: int, slots: int, places: int) -> Packing:
    """The layout of the outcome of a step that samples so many rows."""
    ints, floats = np.int32, np.float32
    chosen = Sample(
        token_ids=np.zeros(rows, ints),
        logprobs=np.zeros(rows, floats),
        failed=np.zeros(rows, bool),
        top_ids=np.zeros((rows, MAX_TOP_LOGPROBS), ints),
        top_logprobs=np.zeros((rows, MAX_TOP_LOGPROBS), floats),
    )
    counts = np.zeros(slots, ints)
    return Packing(Outcome(chosen, counts, counts, np.zeros((slots, places), ints), counts))


def _proposals(state: EngineState, verified: Array, vocab_size: int) -> Proposals | None:
    """Drafts with their laws, in the rows that verify them; a slot's last row has none."""
    if state.draft_laws is None:
        return None
    place = jnp.arange(state.drafts.shape[1] + 1, dtype=jnp.int32)
    tokens = jnp.pad(jnp.asarray(state.drafts), ((0, 0), (0, 1)))
    tokens = jnp.where(place < verified[:, None], tokens, -1)
    laws = jnp.pad(jnp.asarray(state.draft_laws), ((0, 0), (0, 1), (0, 0)))
    counters = proposal_counters(jnp.asarray(state.start)[:, None], place)
    return Proposals(tokens.reshape(-1), laws.reshape(-1, vocab_size), counters.reshape(-1))


def _by_slot(draws: Draws, slots: Array, count: int) -> Draws:
    """Draws of rows as draws of the slots they are for."""
    return jax.tree.map(
        lambda leaf: (
            jnp.zeros((count, *leaf.shape[1:]), leaf.dtype).at[slots].set(leaf, mode="drop")
        ),
        draws,
    )


def _propose(state: EngineState, written: Written, drafter: Drafter, model: Model) -> EngineState:
    """The state with drafts that follow the tokens that were just drawn."""
    with jax.named_scope("draft"):
        kept, drafts = drafter.propose(state.drafter, written, model)
    running, laws = written.running, state.draft_laws
    if drafts.laws is not None:
        assert laws is not None
        laws = jnp.where(running[:, None, None], drafts.laws, laws)
    return replace(
        state,
        draft_laws=laws,
        drafts=jnp.where(running[:, None], drafts.token_ids, state.drafts),
        draft_counts=jnp.where(running, drafts.counts, state.draft_counts),
        drafter=kept,
    )


def _outcome(chosen: Sample, state: EngineState, emitted: Array, verified: Array) -> Array:
    return pack_on_device(Outcome(chosen, emitted, verified, state.drafts, state.draft_counts))
