"""Weights in a folder: opened without reading, read once asked, native where that is wanted."""

from pathlib import Path

import jax
import numpy as np
import pytest

from dsinfer_jax import demo
from dsinfer_jax.checkpoint import CheckpointError
from dsinfer_jax.config import ConfigError
from dsinfer_jax.engine.llm import load_model, open_model
from dsinfer_jax.model.params import Params


def assert_same(one: Params, other: Params) -> None:
    jax.tree.map(lambda left, right: np.testing.assert_array_equal(left, right), one, other)


def test_the_demo_is_a_folder_like_others() -> None:
    config, params, codec = load_model("demo")
    expected_config, expected, tokenizer = demo.load()
    assert config == expected_config
    assert codec.path == tokenizer
    assert_same(params, expected)


def test_a_native_checkpoint_is_written_when_weights_are_read(tmp_path: Path) -> None:
    native = tmp_path / "native"
    config, weights, _ = open_model("demo", native)
    assert not native.exists()
    first = weights.load(None)
    assert (native / "manifest.json").is_file()
    assert_same(first, demo.load()[1])
    assert_same(open_model(demo.FOLDER, native)[1].load(None), first)
    assert config == weights.config


def test_a_folder_that_cannot_be_used_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        open_model(tmp_path)
    (tmp_path / "config.json").write_bytes((demo.FOLDER / "config.json").read_bytes())
    (tmp_path / "tokenizer.json").write_bytes((demo.FOLDER / "tokenizer.json").read_bytes())
    with pytest.raises(CheckpointError):
        open_model(tmp_path)[1].load(None)
