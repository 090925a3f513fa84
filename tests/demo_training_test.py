"""The trainable form of the model against the engine's, and stored formats against both."""

import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_support import CONFIGS, Machine

from dsinfer_jax.model.numerics import EXACT, Numerics
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from demo_training import model, weights

LENGTHS = (50, 14)  # two documents of one row; the candidate set does not bind, see model.py
BUCKET = Bucket(rows=64, sequences=1, table_width=4, outputs=64, tile_rows=8)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(CONFIGS["few_layers"](), EXACT)


@pytest.fixture(scope="module")
def trained(machine: Machine) -> Params:
    """Random float weights; scores far from zero, so that choices are not ties."""
    vocabulary = np.arange(machine.config.vocab_size, dtype=np.int32)
    return weights.initial(machine.config, 3, vocabulary)


def batch_of(documents: list[np.ndarray]) -> model.Batch:
    """All documents in one row, and the same row again."""
    parts = (
        np.concatenate(documents),
        np.concatenate([np.arange(len(one)) for one in documents]),
        np.concatenate([np.full(len(one), place) for place, one in enumerate(documents)]),
    )
    token_ids, positions, document = (
        jnp.asarray(np.stack([part] * 2), jnp.int32) for part in parts
    )
    return model.Batch(token_ids, positions, document, jnp.ones(token_ids.shape))


def test_the_training_form_computes_what_the_engine_computes(
    machine: Machine, trained: Params
) -> None:
    """Logits of every row, with hard choices on, from the same stored weights."""
    wanted = engine_logits(machine, trained, EXACT)
    logits, losses = training_logits(machine, trained, rounded=False)
    assert float(losses.dropped) == 0
    for row in np.asarray(logits):
        np.testing.assert_allclose(row, wanted, atol=2e-4, rtol=2e-4)
    np.testing.assert_allclose(np.sum(losses.expert_load, axis=1), 1, atol=1e-6)


class WithoutBfloat16(Numerics):
    """The runtime policy with float32 in the places of bf16: what the rounded form computes."""

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.float32)


def test_the_rounded_form_rounds_what_the_engine_rounds(machine: Machine, trained: Params) -> None:
    wanted = engine_logits(machine, trained, WithoutBfloat16("runtime", rounds=True))
    exact, rounded = (
        np.asarray(training_logits(machine, trained, rounded)[0][0]) for rounded in (False, True)
    )
    assert np.median(np.abs(exact - wanted)) > 1e-2
    # A last bit decides between two codes now and then, which the rows behind it see.
    assert np.median(np.abs(rounded - wanted)) < 1e-6


def engine_logits(machine: Machine, trained: Params, numerics: Numerics) -> np.ndarray:
    """Of all rows of both documents, one under another."""
    engine = Machine(machine.config, numerics)
    engine.__dict__["params"] = weights.stored(trained, machine.config)
    documents = [machine.tokens(length, seed=length) for length in LENGTHS]
    return np.concatenate([engine.whole(tokens, BUCKET)[: len(tokens)] for tokens in documents])


def training_logits(
    machine: Machine, trained: Params, rounded: bool
) -> tuple[jax.Array, model.Losses]:
    """Of the same documents and stored weights, with hard choices on."""
    config = machine.config
    form = model.Form(sparse=True, expert_slots=config.n_routed_experts, rounded=rounded)
    forward = jax.jit(lambda params, batch: model.forward(params, batch, config, form))
    documents = [machine.tokens(length, seed=length) for length in LENGTHS]
    return forward(weights.as_stored(trained, config), batch_of(documents))


def test_every_weight_learns(machine: Machine, trained: Params) -> None:
    """Gradients are finite everywhere and zero nowhere but where nothing is used."""
    config = machine.config
    batch = batch_of([machine.tokens(length, seed=length) for length in LENGTHS])
    form = model.Form(sparse=False)

    def loss(params: Params) -> jax.Array:
        logits, losses = model.forward(params, batch, config, form)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[..., 0]) + losses.index

    floats, hashes = replace(trained, hashes=None), trained.hashes
    gradient = jax.jit(jax.grad(lambda params: loss(replace(params, hashes=hashes))))(floats)
    idle = ("image_start", "image_end", "image_newline", "bias", "bias_vl")
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all(), path
        unused = any(name == getattr(key, "name", "") for key in path for name in idle)
        assert unused or np.any(np.asarray(leaf) != 0), path


def test_stored_values_are_stored_as_they_are(machine: Machine, trained: Params) -> None:
    """What quantisation-aware steps see does not change when it is rounded again."""
    once = weights.as_stored(trained, machine.config)
    twice = weights.as_stored(once, machine.config)
    for one, other in zip(jax.tree.leaves(once), jax.tree.leaves(twice)):
        np.testing.assert_array_equal(one, other)
