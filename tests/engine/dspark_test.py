"""The draft block inside the engine: what it proposes, and that answers do not depend on it."""

import warnings
from dataclasses import replace
from functools import partial

import draft_support
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draft_support import PLACES, Drafted
from engine_support import check_empty, run, same_answer

from dsinfer_jax import config
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.markov_check import looks_exchanged
from dsinfer_jax.engine.programs import Programs
from dsinfer_jax.model import init
from dsinfer_jax.model.draft import draft_block
from dsinfer_jax.model.numerics import EXACT
from dsinfer_jax.model.params import Params

requests = partial(draft_support.requests, max_tokens=40)


@pytest.mark.parametrize(("temperature", "deterministic"), [(0.0, False), (0.9, True)])
def test_answers_are_those_without_drafts(
    drafted: Drafted, temperature: float, deterministic: bool
) -> None:
    plain, company = requests(5, temperature), requests(5, temperature)
    run(drafted.engine("off", deterministic=deterministic), plain)
    engine = drafted.engine("dspark", deterministic=deterministic)
    run(engine, company)
    assert all(map(same_answer, plain, company))
    assert all(one.drafted_tokens >= PLACES * 10 for one in company)
    if temperature > 0:  # random weights agree only where noise is shared
        assert sum(one.accepted_tokens for one in company) > 20
    check_empty(engine)


def test_drawn_drafts_stay_more_often_than_shared_noise_agrees(drafted: Drafted) -> None:
    """The two rules on the same model: the exact one accepts more, and its answers repeat."""
    kept = {}
    for deterministic in (False, True):
        engine = drafted.engine("dspark", deterministic=deterministic)
        first, again = requests(8, 0.9), requests(8, 0.9)
        run(engine, first)
        run(engine, again)
        assert all(map(same_answer, first, again))
        stats = engine.request_stats
        kept[deterministic] = stats.accepted_tokens[1] / stats.drafted_tokens[1]
    assert kept[False] > kept[True] > 0.02


def test_the_engine_proposes_what_the_block_says(drafted: Drafted) -> None:
    """After every step, of every slot that runs: the block on the engine's own cache."""
    engine = drafted.engine("dspark", asynchronous=False)

    @jax.jit
    def block(params: Params, cache: object, anchors: jax.Array, last: jax.Array) -> jax.Array:
        return draft_block(
            params, cache, anchors, last, lambda logits, place: jnp.argmax(logits, -1).astype(
                jnp.int32), jnp.ones(5), drafted.config, EXACT,
        ).tokens  # fmt: skip

    for one in requests(3, 0.0):
        engine.add_request(one)
    compared = 0
    for _ in range(20):
        engine.step()
        state, slots = engine._programs._state, engine._scheduler.each[0].slots
        running = np.flatnonzero(slots.earliest >= 0)
        last = np.full(engine.sizes.slots, -1, np.int32)
        last[running] = np.asarray(state.start)[running] - 1
        wanted = np.asarray(block(drafted.params, engine._cache, state.newest, last))
        got = np.asarray(state.drafts)
        np.testing.assert_array_equal(got[running], wanted[running, :PLACES])
        compared += len(running)
    assert compared > 30


def test_a_draft_that_knows_the_target_stays_at_every_place(drafted: Drafted) -> None:
    """E12, and the last tokens are not overshot."""
    engine = drafted.engine("dspark", drafted.successors(20.0, 100.0))
    company = requests(4, 0.0)
    run(engine, company)
    for one in company:
        first = one.prompt_token_ids[-1] + 1
        assert one.token_ids == [(first + place) % 512 for place in range(40)]
    stats = engine.request_stats
    assert stats.accepted_tokens == stats.drafted_tokens
    assert sorted(stats.drafted_tokens) == [1, 2, 3, 4]


def test_swapped_markov_tables_are_noticed_at_the_start(drafted: Drafted) -> None:
    trained = drafted.successors(20.0, 100.0)
    assert trained.draft is not None
    swapped = replace(
        trained.draft,
        markov_embed=trained.draft.markov_head,
        markov_head=trained.draft.markov_embed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafted.engine("dspark")  # random weights
        drafted.engine("dspark", trained)
    with pytest.warns(RuntimeWarning, match="they seem to be swapped in the checkpoint"):
        drafted.engine("dspark", replace(trained, draft=swapped))


def test_chance_is_no_reason_to_warn() -> None:
    dice = np.random.default_rng(0)
    noise = dice.normal(0, 1, 400)
    assert not looks_exchanged(np.zeros(0))
    assert not looks_exchanged(noise[:1] + 9)
    assert not looks_exchanged(noise)
    assert not looks_exchanged(noise - 1)
    assert not looks_exchanged(np.full(400, 0.01))  # sure, and not worth a word
    assert looks_exchanged(noise + 0.5)


def test_tables_that_mislead_either_way_are_not_taken_for_swapped(drafted: Drafted) -> None:
    """They are worse than none as they are, and no better than none when they are exchanged."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafted.engine("dspark", drafted.favouring((40, 41, 42), 60.0))


def test_a_model_without_a_draft_block_is_refused() -> None:
    sizes = EngineConfig.of(config.tiny(), drafter="dspark")
    with pytest.raises(ValueError, match="the model has no draft block"):
        Programs(init.init(config.tiny(), seed=0), config.tiny(), EXACT, sizes)
