"""What the programs of mesh_loading_test.py share: a checkpoint, meshes, what must lie there."""

from pathlib import Path
from typing import Any

import jax
import noise_model
import numpy as np

from dsinfer_jax.checkpoint import PlaceRule, save_pretrained
from dsinfer_jax.checkpoint.vocabulary import fold_vocabulary
from dsinfer_jax.config import ModelConfig, tiny
from dsinfer_jax.engine.weights import leaf_places
from dsinfer_jax.mesh.expert_placement import Placement, PlaceSizes, even_placement
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.mesh.shardings import device_mesh
from dsinfer_jax.model.init import init
from dsinfer_jax.model.parameter_table import TensorSpec
from dsinfer_jax.model.params import Params, leaf_at

PIECES: dict[str, Any] = {
    "num_hidden_layers": 4,
    "moe_intermediate_size": 256,  # most of the weights are experts
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3],
    "candidate_source_layer_id": 2,
    "engram_layer_ids": [0, 1],
    "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 2, 1, 1, 0],
    "dspark_noise_token_id": 2,
    "dspark_target_layer_ids": [2, 3],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}


def model() -> tuple[ModelConfig, Params]:
    """A draft block with other experts than the backbone's, and two tables of odd sizes."""
    config = tiny(**PIECES)
    return config, init(config, 7, token_map=fold_vocabulary(noise_model.TOKENIZER))


def save(folder: Path, config: ModelConfig, params: Params) -> None:
    save_pretrained(params, config, folder, shard_bytes=400_000)
    (folder / "tokenizer.json").write_bytes(noise_model.TOKENIZER.read_bytes())


def random_places(
    config: ModelConfig, shape: tuple[int, int, int], copies: int, seed: int
) -> PlaceRule:
    """A mesh on which experts lie anywhere, at least once, with copies on each device."""
    layout = MeshLayout(*shape)
    assert config.draft is not None
    random = np.random.default_rng(seed)
    parts = [
        (config.n_routed_experts, config.num_hidden_layers),
        (config.draft.experts, config.draft.layers),
    ]
    placements = [
        _random_placement(experts, layers, layout.expert_parallel, copies, random)
        for experts, layers in parts
    ]
    return leaf_places(device_mesh(layout), placements, "prefill")


def _random_placement(
    experts: int, layers: int, ranks: int, copies: int, random: np.random.Generator
) -> Placement:
    sizes = PlaceSizes.of(experts, copies * ranks, ranks)
    rows = [
        random.permutation([*range(experts), *random.integers(0, experts, sizes.redundant)])
        for _ in range(layers)
    ]
    return even_placement(sizes, np.asarray(rows, np.int32))


def in_place(spec: TensorSpec, params: Params, rule: PlaceRule) -> np.ndarray:
    """A whole leaf as it must be on a mesh, made from the tree in memory."""
    leaf, place = np.asarray(leaf_at(params, spec)), rule(spec)
    assert place is not None
    if place.expert_at is not None:
        return leaf[np.arange(leaf.shape[0])[:, None], place.expert_at]
    if place.rows is not None:
        return np.concatenate([leaf, np.zeros((place.rows - len(leaf), leaf.shape[1]), leaf.dtype)])
    return leaf


def is_there(spec: TensorSpec, loaded: jax.Array, params: Params, rule: PlaceRule) -> bool:
    """The devices of this process hold the bits that belong there."""
    wanted, place = in_place(spec, params, rule), rule(spec)
    assert place is not None
    order = tuple(range(loaded.ndim)) if place.layout is None else place.layout.major_to_minor
    return (
        loaded.sharding == place.sharding
        and loaded.format.layout.major_to_minor == order
        and (loaded.shape, loaded.dtype) == (wanted.shape, wanted.dtype)
        and all(
            np.asarray(shard.data).tobytes() == wanted[shard.index].tobytes()
            for shard in loaded.addressable_shards
        )
    )


def same(one: jax.Array, other: jax.Array) -> bool:
    """Equal in bits, and on the same devices in the same parts."""
    return (
        one.sharding.is_equivalent_to(other.sharding, one.ndim)
        and one.format.layout.major_to_minor == other.format.layout.major_to_minor
        and (one.shape, one.dtype) == (other.shape, other.dtype)
        and np.asarray(one).tobytes() == np.asarray(other).tobytes()
    )
