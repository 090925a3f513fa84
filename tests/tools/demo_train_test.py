"""A short training: every stage runs, the loss falls, a run that was stopped goes on."""

import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("optax", reason="the train extra is not installed")
pytest.importorskip("grain", reason="the train extra is not installed")
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from demo_training import data, train, weights
from demo_training.tokenizer import PATH

from dsinfer_jax import config
from dsinfer_jax.checkpoint import load_pretrained
from dsinfer_jax.checkpoint.save import save_pretrained
from dsinfer_jax.checkpoint.vocabulary import fold_vocabulary

STEPS = 8
SHORT = replace(data.SHORT, length=128)
LONG = replace(data.LONG, length=512)
PLAN = train.Plan(STEPS, peak=5e-3)
PIECES = {  # a layer of every kind
    "num_hidden_layers": 4,
    "compress_ratios": [0, 2, 1, 1],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3],
    "candidate_source_layer_id": 2,
    "engram_layer_ids": [1],
    "sliding_window": 16,
}


def test_a_short_training_learns_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    token_map = fold_vocabulary(PATH)
    small = config.tiny(vocab_size=len(token_map), **PIECES)
    sources = {
        False: data.stored_rows(data.Rows(SHORT, 32), tmp_path / "data"),
        True: data.stored_rows(data.Rows(LONG, 4), tmp_path / "data"),
    }
    batches = data.Batches.of(sources, {False: 8, True: 2})
    assert {PLAN.stage(step).name for step in range(STEPS)} == {"short", "long", "sparse"}
    assert [step for step in range(STEPS) if PLAN.is_long(step)] == [3, 5, 7]
    steps = train.Steps(small, PLAN, token_map)  # both runs share what is compiled

    def run(name: str, stop_at: int | None = None) -> weights.Params:
        return train.train(
            steps, batches, tmp_path / name, stop_at=stop_at, report_every=1, say=lambda line: None
        )

    whole = run("whole")
    run("parts", stop_at=6)
    parts = run("parts")
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts)):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    losses = [entry["loss"] for entry in train.read_log(tmp_path / "whole")]
    assert len(losses) == STEPS
    assert losses[4] < losses[0] - 0.5
    assert np.isfinite(losses).all()

    save_pretrained(
        weights.stored(whole, small), small, tmp_path / "model", tokenizer_folder=PATH.parent
    )
    read_config, read = load_pretrained(tmp_path / "model")
    assert read_config == small
    for one, other in zip(jax.tree.leaves(weights.stored(whole, small)), jax.tree.leaves(read)):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    token_map = fold_vocabulary(PATH)
    small, other = (
        train.Steps(config.tiny(vocab_size=len(token_map), hidden_size=size, **PIECES), PLAN,
                    token_map)
        for size in (64, 96)
    )  # fmt: skip
    train.save_state(tmp_path, small.first)
    with pytest.raises(ValueError, match="is of another model; use another folder"):
        train.load_state(tmp_path, other.first)
