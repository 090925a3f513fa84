"""A checkpoint folder into the parameter tree: lazily, only the slices that the devices need."""

from pathlib import Path

import numpy as np

from dsinfer_jax.checkpoint.index import find_tensors
from dsinfer_jax.checkpoint.leaf_reader import Stored, read_tree
from dsinfer_jax.checkpoint.places import PlaceRule
from dsinfer_jax.checkpoint.vocabulary import load_hash_params
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import TensorSpec
from dsinfer_jax.model.params import Params


def load_pretrained(
    folder: str | Path,
    *,
    place: PlaceRule | None = None,
    config: ModelConfig | None = None,
) -> tuple[ModelConfig, Params]:
    """Load a checkpoint in the Hugging Face layout (model.md 11).

    Args:
        folder: holds config.json, model.safetensors.index.json, the shards and, for a model with
            n-gram memory, tokenizer.json.
        place: says where each row of the parameter table lies; None, or a row it answers None for,
            means jax's default device. Of several processes each reads the slices of its own
            devices.
        config: replaces the folder's config.json; the tensors must fit it.

    Returns:
        The configuration and the parameters, on their devices.

    Raises:
        ConfigError: config.json cannot be used.
        CheckpointError: index, shards or tokenizer cannot be used; nothing is on a device then.
    """
    if config is None:
        config = ModelConfig.from_pretrained(folder)
    return config, read_tree(config, stored_tensors(folder, config), place, f"loading {folder}")


def stored_tensors(folder: str | Path, config: ModelConfig) -> Stored:
    """Views of the tensors of a checkpoint folder, which is checked, and of what is derived.

    Raises:
        CheckpointError: index, shards or tokenizer cannot be used.
    """
    tensors = find_tensors(folder, config)
    hashes = load_hash_params(folder, config)

    def stored(spec: TensorSpec, position: tuple[int, ...]) -> np.ndarray:
        if not spec.name:
            return np.asarray(getattr(hashes, str(spec.path[-1])))
        return tensors[spec.tensor(position)].read()

    return stored
