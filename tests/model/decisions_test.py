"""Choices of experts and keys: exported from one run, imported into another, and what they obey."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from model_support import Machine, assert_same_bits, bucket, machine, piece

from dsinfer_jax import _jax
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.observe import DECISIONS, Recorder
from dsinfer_jax.model.plan import prefill_plan

LENGTH = 96  # beyond 64 keys, so that the candidate blocks exclude some
Decisions = Mapping[tuple[str, int], jax.Array]


@pytest.fixture(scope="module")
def few() -> Machine:
    return machine("few_layers", "exact")


@pytest.fixture(scope="module")
def observed(few) -> Any:
    """(decisions to import) -> logits and the decisions taken, of one prompt in one slice."""
    plan = prefill_plan([piece(few.tokens(LENGTH), 0, LENGTH)], bucket(LENGTH), few.config)

    def run(params: Any, cache: Any, plan: Any, imported: Decisions) -> Any:
        recorder = Recorder(names=DECISIONS, replacements=imported)
        cache, result = forward(params, cache, plan, few.config, few.numerics, recorder)
        return cache, result.logits, recorder.recorded

    program = _jax.jit(run)

    def call(imported: Decisions) -> tuple[np.ndarray, dict[tuple[str, int], np.ndarray]]:
        _, logits, decisions = program(few.params, few.fresh(), plan, imported)
        return np.asarray(logits), {key: np.asarray(value) for key, value in decisions.items()}

    return call


@pytest.fixture(scope="module")
def exported(observed):
    return observed({})


def test_every_choice_is_exported(few, exported):
    layers = few.config.layers
    expected = {("router_ids", spec.index) for spec in layers}
    expected |= {("index_ids", spec.index) for spec in layers if spec.owns_index}
    expected |= {("cand_blocks", few.config.candidate_source_layer_id)}
    assert set(exported[1]) == expected


def test_importing_its_own_choices_changes_nothing(observed, exported):
    logits, decisions = observed(exported[1])
    assert_same_bits(logits, exported[0])
    for key, value in exported[1].items():
        np.testing.assert_array_equal(decisions[key], value)


def test_imported_choices_are_obeyed(few, observed, exported):
    """Other experts in one layer and fewer keys in another give other logits."""
    own = exported[1]
    experts = own["router_ids", 2]
    others = (experts + 1) % few.config.n_routed_experts
    logits, decisions = observed({**own, ("router_ids", 2): others})
    np.testing.assert_array_equal(decisions["router_ids", 2], experts)  # what it would have chosen
    assert np.abs(logits - exported[0]).max() > 1e-2
    none = np.full_like(own["index_ids", 1], -1)
    logits, _ = observed({**own, ("index_ids", 1): none})
    assert np.abs(logits[8:] - exported[0][8:]).max() > 1e-2


def test_candidate_blocks(few, exported):
    """Beyond 64 keys: eight blocks, the newest among them; no restricted key lies outside."""
    source, size = few.config.candidate_source_layer_id, few.config.candidate_block_size
    blocks = exported[1]["cand_blocks", source]
    chosen = {layer: exported[1]["index_ids", layer] for layer in (source, source + 1)}
    for row in range(LENGTH):
        keys = row + 1
        kept = [block for block in blocks[row] if block >= 0]
        assert kept == sorted(set(kept))
        assert len(kept) == min(few.config.candidate_topk_blocks, -(-keys // size))
        assert row // size in kept
        for layer, ids in chosen.items():
            listed = [key for key in ids[row] if key >= 0]
            assert listed == sorted(set(listed))
            assert len(listed) == min(few.config.index_topk, keys)
            assert max(listed) <= row
            if layer != source:
                outside = [key for key in listed if key // size not in kept]
                assert not outside, f"row {row} reads keys {outside} outside its blocks"
