"""What the tests of this folder share: a saved checkpoint, and how to rewrite one with an edit."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from dsinfer_jax.checkpoint.index import INDEX_NAME
from dsinfer_jax.checkpoint.safetensors import SafetensorsFile, TensorLayout, write_safetensors
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.params import Params

DATA = Path(__file__).parents[1] / "data"
GOLDEN = Path(__file__).parents[3] / "shared" / "golden"  # beside the checkout, if at all

Tensors = dict[str, tuple[str, np.ndarray]]  # stored dtype and values by stored name


@dataclass(frozen=True)
class Saved:
    """A checkpoint folder and what was saved in it."""

    folder: Path
    config: ModelConfig
    params: Params


def read_tensors(folder: Path) -> Tensors:
    """Every tensor of the shards of a folder, copied."""
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = SafetensorsFile(path)
        for name, layout in file.layouts.items():
            tensors[name] = (layout.dtype, np.array(file.read(name)))
    return tensors


def rewrite(folder: Path, edit: Callable[[Tensors], object]) -> None:
    """Replace a folder's shards by one shard with the edited tensors, and its index."""
    tensors = read_tensors(folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    edit(tensors)
    layouts = {name: TensorLayout(dtype, values.shape) for name, (dtype, values) in tensors.items()}
    write_safetensors(folder / "model.safetensors", layouts, lambda name: [tensors[name][1]])
    weight_map = dict.fromkeys(tensors, "model.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def assert_same_bits(left: Params, right: Params) -> None:
    """The same tree, with the same types, shapes and bytes in every leaf."""

    def check(one: jax.Array, other: jax.Array) -> None:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()

    jax.tree.map(check, left, right)
