"""The trainable form of the draft block against the engine's."""

import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_support import SLOTS, Machine, bucket, piece

pytest.importorskip("optax", reason="the train extra is not installed")
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from demo_training import draft, draft_train, model, weights

from dsinfer_jax.config import tiny
from dsinfer_jax.model.draft import draft_block
from dsinfer_jax.model.numerics import EXACT
from dsinfer_jax.model.params import Params

KNOWN = (5, 50)  # tokens before the anchors: less than a window, and more
PLACES = 5


@pytest.fixture(scope="module")
def machine() -> Machine:
    config = tiny(
        num_hidden_layers=4,
        compress_ratios=[0, 2, 1, 1, 0, 0],
        kv_source_layer_ids=[1, 2],
        index_source_layer_ids=[1, 2, 3],
        candidate_source_layer_id=2,
        candidate_topk_blocks=32,
        engram_layer_ids=[1],
        num_nextn_predict_layers=2,
        dspark_block_size=PLACES,
        dspark_noise_token_id=2,
        dspark_target_layer_ids=[2, 3],
        dspark_markov_rank=32,
        dspark_n_routed_experts=8,
        dspark_num_experts_per_tok=2,
    )
    return Machine(config, EXACT)


@pytest.fixture(scope="module")
def trained(machine: Machine) -> Params:
    vocabulary = np.arange(machine.config.vocab_size, dtype=np.int32)
    return weights.initial(machine.config, 3, vocabulary)


def test_the_training_form_drafts_what_the_engine_drafts(machine: Machine, trained: Params) -> None:
    """Logits and confidences of blocks after prompts, given the same tokens."""
    config = machine.config
    engine = Machine(config, EXACT)
    engine.__dict__["params"] = weights.stored(trained, config)
    documents = [machine.tokens(known + 1 + PLACES, seed=known) for known in KNOWN]
    slices = [piece(one, 0, known, slot=place) for place, (one, known) in enumerate(
        zip(documents, KNOWN))]  # fmt: skip
    cache, _ = engine.prefill(engine.fresh(), slices, bucket(128))
    following = np.zeros((SLOTS, PLACES + 1), np.int32)
    for slot, (one, known) in enumerate(zip(documents, KNOWN)):
        following[slot] = one[known:]
    last = np.full(SLOTS, -1, np.int32)
    last[: len(KNOWN)] = np.array(KNOWN) - 1
    drafted = jax.jit(
        lambda params, cache: draft_block(
            params, cache, jnp.asarray(following[:, 0]), jnp.asarray(last),
            lambda logits, place: jnp.asarray(following)[:, 1 + place], jnp.ones(PLACES),
            config, EXACT,
        )
    )(engine.params, cache)  # fmt: skip

    said = jax.jit(partial(_laws_of, machine))(weights.as_stored(trained, config), documents)
    for slot, laws in enumerate(said):
        np.testing.assert_allclose(drafted.logits[slot], laws.logits[0, 0], atol=2e-4, rtol=2e-4)
        estimated = jax.nn.sigmoid(laws.confidences[0, 0])
        np.testing.assert_allclose(drafted.confidences[slot], estimated, atol=1e-4)


def _laws_of(machine: Machine, params: Params, documents: list[jax.Array]) -> list[draft.Laws]:
    config, found = machine.config, []
    for tokens, known in zip(documents, KNOWN):
        padding = -len(tokens) % config.sliding_window
        positions = jnp.arange(len(tokens) + padding)[None]
        batch = model.Batch(
            jnp.pad(tokens, (0, padding))[None], positions,
            jnp.where(positions < len(tokens), 0, -1), jnp.ones(positions.shape),
        )  # fmt: skip
        form = model.Form(sparse=True, expert_slots=config.n_routed_experts)
        _, _, features = model.forward_with_features(params, batch, config, form)
        assert features is not None
        anchors = jnp.full((1, 1), known, jnp.int32)
        blocks = draft.Blocks(
            anchors,
            jnp.ones((1, 1, PLACES), bool),
            batch.token_ids[:, None, known:][..., : PLACES + 1],
        )
        found.append(draft.laws(params, features, batch, blocks, config))
    return found


def test_blocks_begin_in_answers_and_end_with_them() -> None:
    length = 40
    weight = np.full((1, length), 0.1, np.float32)
    weight[0, 10:20] = 1
    tokens = jnp.arange(length, dtype=jnp.int32)[None]
    batch = model.Batch(tokens, tokens, jnp.zeros_like(tokens), jnp.asarray(weight))
    blocks = draft.blocks_of(batch, 12, PLACES, jax.random.key(0))
    used = np.asarray(blocks.counts[0, :, 0])
    assert sorted(np.asarray(blocks.anchors[0])[used]) == list(range(10, 20))
    for anchor, counts, following in zip(*(np.asarray(leaf[0]) for leaf in blocks)):
        np.testing.assert_array_equal(following, anchor + np.arange(PLACES + 1))
        inside = (anchor + np.arange(PLACES) < 20) & (anchor >= 10)
        np.testing.assert_array_equal(counts, inside & (10 <= anchor < 20))


def test_a_draft_that_says_what_the_target_says_is_sure_of_itself() -> None:
    """Its overlap is 1 at every place, its accepted length whole, and the loss of its law only what
    the target's own uncertainty costs."""
    logits = jax.random.normal(jax.random.key(1), (1, 3, PLACES, 16))
    said = draft.Laws(logits, jnp.full((1, 3, PLACES), 30.0), jnp.ones((1, 2)), jnp.zeros(()))
    blocks = draft.Blocks(
        jnp.zeros((1, 3), jnp.int32), jnp.ones((1, 3, PLACES), bool),
        jnp.argmax(jnp.pad(logits, ((0, 0), (0, 0), (1, 0), (0, 0))), -1).astype(jnp.int32),
    )  # fmt: skip
    _, found = draft_train.losses(said, logits, blocks)
    assert float(found["overlap"]) == pytest.approx(1, abs=1e-6)
    assert float(found["accepted_length"]) == PLACES + 1
    assert float(found["confidence_error"]) < 1e-6
    other = said._replace(logits=-logits)
    _, worse = draft_train.losses(other, logits, blocks)
    assert float(worse["overlap"]) < 0.5
