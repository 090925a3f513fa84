"""Random weights: the same bits for the same seed, in the stored formats, with no part inert."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsinfer_jax.config import ModelConfig, tiny, tiny_formats
from dsinfer_jax.model.init import init
from dsinfer_jax.model.params import Params, Quantised, abstract

WITH_DRAFT = {
    "num_nextn_predict_layers": 2,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0],
    "dspark_target_layer_ids": [7, 8, 9],
    "dspark_noise_token_id": 13,
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}


def digest(params: Params) -> str:
    state = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        state.update(np.asarray(leaf).tobytes())
    return state.hexdigest()


@pytest.fixture(scope="module")
def params() -> Params:
    return init(tiny(), 0)


@pytest.mark.parametrize(
    "config",
    [
        tiny(),
        tiny(**WITH_DRAFT),
        tiny_formats(),
        tiny(hc_shifted=False),
        tiny(engram_layer_ids=[], n_shared_experts=0),
    ],
)
def test_leaves_fit_the_table(config: ModelConfig) -> None:
    expected = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract(config))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), init(config, 0)) == expected


def test_the_seed_decides_the_bits(params: Params) -> None:
    assert digest(params) == digest(init(tiny(), 0))
    assert digest(params) != digest(init(tiny(), 1))


def test_a_leaf_does_not_depend_on_its_neighbours(params: Params) -> None:
    more = init(tiny(**WITH_DRAFT), 0)
    for one, other in zip(
        jax.tree.leaves(params.layers), jax.tree.leaves(more.layers), strict=True
    ):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_the_vocabulary_is_unfolded_unless_given(params: Params) -> None:
    assert params.hashes is not None
    assert params.hashes.token_map.tolist() == list(range(512))
    folded = init(tiny(), 0, token_map=np.arange(512) // 2)
    assert folded.hashes is not None
    assert folded.hashes.token_map.tolist() == [token // 2 for token in range(512)]
    assert folded.hashes.pad_id == 1


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantised(weight: Quantised) -> np.ndarray:
    """Values of one layer's matrix, in NumPy; e4m3 scales cover 32 x 32 values or 32 of a row."""
    codes, exponents = np.asarray(weight.weight), np.asarray(weight.scale).astype(int)
    scale = np.repeat(2.0 ** (exponents - 127), 32, axis=-1)
    if codes.dtype == np.uint8:
        pairs = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=-1)
        return pairs.reshape(*codes.shape[:-1], -1) * scale
    if scale.shape[-2] != codes.shape[-2]:
        scale = np.repeat(scale, 32, axis=-2)
    return codes.astype(np.float64) * scale


def test_products_have_about_unit_gain(params: Params) -> None:
    attention, experts = params.layers.attention, params.experts
    matrices = {
        name: dequantised(getattr(attention, name))
        for name in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")
    }
    matrices |= {name: dequantised(getattr(experts, name)) for name in ("w1", "w2", "w3")}
    matrices |= {str(number): dequantised(part.wkv) for number, part in enumerate(params.engrams)}
    for name, matrix in matrices.items():
        gain = np.sqrt((matrix**2).sum(-1).mean())
        assert 0.5 < gain < 2, name
    for part in params.engrams:
        assert 0.5 < dequantised(part.embed).std() < 2


def test_no_part_is_inert(params: Params) -> None:
    """model.md 13: sinks and index weights of both signs, spread gate biases, scales near 1."""
    assert params.indexers is not None
    for leaf in (params.layers.attention.attn_sink, params.indexers.weights_proj):
        assert 0.3 < float(jnp.mean(leaf > 0)) < 0.7
    assert float(jnp.std(params.layers.gate.bias)) > 0.05
    for mix in (params.layers.hc_attn, params.layers.hc_ffn):
        assert 0.9 < float(jnp.mean(mix.scale)) < 1.1
        assert float(jnp.std(mix.scale)) > 0.05
        assert 0.3 < float(jnp.std(mix.base)) < 0.7  # Sinkhorn far from both extremes
    for scale in (params.experts.w1.scale, params.layers.attention.wq_b.scale):
        assert len(np.unique(np.asarray(scale))) == 3  # a wrong block shows
    codes = np.asarray(params.experts.w2.weight)
    assert len(np.unique(codes)) == 256
