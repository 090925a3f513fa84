"""A tiny checkpoint on disk, and a copy of it for a test to damage."""

import shutil
from pathlib import Path

import pytest
from checkpoint_folders import DATA, Saved

from dsinfer_jax.checkpoint import save_pretrained
from dsinfer_jax.checkpoint.vocabulary import TOKENIZER_NAME, fold_vocabulary
from dsinfer_jax.config import tiny
from dsinfer_jax.model.init import init


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    shutil.copyfile(DATA / "tokenizer_1024.json", folder / TOKENIZER_NAME)
    return folder


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Saved:
    """Ratios 0, 1 and 2, several sources, n-gram memory and draft layers, in several shards."""
    config = tiny(
        vocab_size=1024,
        num_nextn_predict_layers=2,
        compress_ratios=[0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0],
        dspark_target_layer_ids=[7, 8, 9],
        dspark_noise_token_id=13,
        dspark_markov_rank=32,
        dspark_n_routed_experts=4,
        dspark_num_experts_per_tok=2,
    )
    token_map = fold_vocabulary(tokenizer_folder / TOKENIZER_NAME)
    params = init(config, 3, token_map=token_map)
    folder = tmp_path_factory.mktemp("saved")
    save_pretrained(params, config, folder, tokenizer_folder=tokenizer_folder, shard_bytes=400_000)
    return Saved(folder, config, params)


@pytest.fixture
def copy(saved: Saved, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint, to be damaged."""
    folder = tmp_path / "copy"
    shutil.copytree(saved.folder, folder)
    return folder
