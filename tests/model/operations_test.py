"""Single operations of the model against golden data: rotary, streams, compression, experts."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import CLOSE, golden

from dsinfer_jax.config import RopeScaling, tiny
from dsinfer_jax.model import hyper_connection, moe, rotary
from dsinfer_jax.model.compressor import pool_pair
from dsinfer_jax.model.numerics import EXACT, RUNTIME, rms_norm
from dsinfer_jax.model.params import HyperConnectionParams

ROPES = {
    "plain": (10000.0, None),
    "yarn": (40000.0, RopeScaling(256, 16, 32, 1)),
    "yarn_long": (160000.0, RopeScaling(65536, 16, 32, 1)),
}


@pytest.mark.parametrize("name", ROPES)
def test_rotary_tables(name):
    """Frequencies, and cosine and sine of the float32 angle, large positions included."""
    base, scaling = ROPES[name]
    inverse = rotary.frequencies(base, 64, scaling)
    np.testing.assert_allclose(inverse, golden(f"rope.{name}.inv_freq"), rtol=3e-7)
    positions = golden(f"rope.{name}.positions")
    unit = jnp.zeros((len(positions), 64)).at[:, 0::2].set(1.0)
    turned = rotary.rotate(unit, jnp.asarray(positions), golden(f"rope.{name}.inv_freq"))
    np.testing.assert_allclose(turned[:, 0::2], golden(f"rope.{name}.cos"), atol=1e-6)
    np.testing.assert_allclose(turned[:, 1::2], golden(f"rope.{name}.sin"), atol=1e-6)


def test_published_yarn_values():
    """The check values of model.md 4.3."""
    inverse = rotary.frequencies(160000.0, 64, ROPES["yarn_long"][1])
    expected = {
        0: 1, 1: 0.687656, 15: 0.00363554, 16: 0.00226563, 20: 2.969778e-4,
        25: 5.372313e-6, 31: 5.680529e-7,
    }  # fmt: skip
    for place, value in expected.items():
        assert inverse[place] == pytest.approx(value, rel=5e-6)  # six digits given


@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_rotation(direction):
    x = jnp.asarray(golden("rope.apply.input"))
    positions = jnp.asarray(golden("rope.apply.positions"))
    expected = golden(f"rope.apply.{direction}")
    errors = []
    for name in ROPES:  # the data does not say which table it turned with; exactly one fits
        inverse_frequencies = golden(f"rope.{name}.inv_freq")
        found = rotary.rotate(x, positions, inverse_frequencies, direction == "inverse")
        errors.append(float(np.abs(found - expected).max()))
    assert sorted(errors)[0] < 2e-6 < 1e-2 < sorted(errors)[1]


def test_rotation_there_and_back():
    x = jnp.asarray(golden("rope.apply.input"))
    positions = jnp.asarray(golden("rope.apply.positions"))
    table = golden("rope.yarn.inv_freq")
    back = rotary.rotate(rotary.rotate(x, positions, table), positions, table, inverse=True)
    np.testing.assert_allclose(back, x, atol=1e-6)


@pytest.mark.parametrize("iterations", [1, 5, 20])
def test_sinkhorn(iterations):
    found = hyper_connection.sinkhorn(jnp.asarray(golden("sinkhorn.input")), iterations, 1e-6)
    np.testing.assert_allclose(found, golden(f"sinkhorn.iters{iterations}"), **CLOSE)


def test_sinkhorn_check_values():
    """The matrix of model.md 3.2."""
    logits = jnp.array([[[1, 0, 0, 0], [0, 2, 0, 0], [0.5, 0, 0, 1], [0, 0, -1, 0.0]]])
    expected = [
        [0.406864, 0.114695, 0.309197, 0.169243],
        [0.101435, 0.574329, 0.209540, 0.114695],
        [0.218247, 0.101435, 0.273452, 0.406864],
        [0.273452, 0.209540, 0.207810, 0.309197],
    ]
    np.testing.assert_allclose(hyper_connection.sinkhorn(logits, 20, 1e-6)[0], expected, atol=2e-6)


def test_stream_mixing():
    config = dataclasses.replace(tiny(), hidden_size=32)
    streams = jnp.asarray(golden("hc.streams"))
    params = HyperConnectionParams(
        *(jnp.asarray(golden(f"hc.{field}")) for field in ("fn", "base", "scale"))
    )
    mixes = hyper_connection.mix(streams, params, config)
    np.testing.assert_allclose(mixes.pre, golden("hc.pre"), **CLOSE)
    np.testing.assert_allclose(mixes.post, golden("hc.post"), **CLOSE)
    np.testing.assert_allclose(mixes.residual, golden("hc.comb"), **CLOSE)
    collapsed = hyper_connection.collapse(streams, mixes.pre, EXACT)
    np.testing.assert_allclose(collapsed, golden("hc.collapsed_with_pre"), **CLOSE)
    output = jnp.asarray(golden("hc.sublayer_out"))
    after = hyper_connection.expand(output, streams, mixes, EXACT)
    np.testing.assert_allclose(after, golden("hc.streams_after"), **CLOSE)


def test_pair_compression():
    gates, values = golden("compress2.score"), golden("compress2.latent")
    first, second = (jnp.asarray(np.stack([gates[:, i], values[:, i]], axis=1)) for i in (0, 1))
    np.testing.assert_allclose(pool_pair(first, second), golden("compress2.out"), **CLOSE)


@pytest.mark.parametrize("name", ["bias", "nobias"])
def test_routing(name):
    """Ties go to the lower expert; logits above 20 and below 0 included; weights ignore bias."""
    bias = golden("router.bias_vector") if name == "bias" else np.zeros(8, np.float32)
    scores = moe.router_scores(jnp.asarray(golden("router.logits")))
    routing = moe.route(scores, jnp.asarray(bias), 3, 1.5)
    np.testing.assert_array_equal(routing.experts, golden(f"router.{name}.ids"))
    np.testing.assert_allclose(routing.weights, golden(f"router.{name}.weights"), **CLOSE)


def test_swiglu():
    gate, up = jnp.asarray(golden("swiglu.gate")), jnp.asarray(golden("swiglu.up"))
    np.testing.assert_allclose(
        moe.swiglu(gate, up, 2.5), golden("swiglu.out_limit2.5"), rtol=2e-6, atol=1e-6
    )


def test_norm():
    """One rounding at the end, no epsilon to speak of: tiny inputs keep unit length."""
    x = np.random.default_rng(0).standard_normal((3, 64)) * 1e-8
    weight = jnp.full(64, 1.5, jnp.bfloat16)
    exact = rms_norm(jnp.asarray(x, jnp.float32), weight, 1e-20, EXACT)
    expected = 1.5 * x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-20)
    np.testing.assert_allclose(exact, expected, rtol=1e-6)
    rounded = rms_norm(jnp.asarray(x, jnp.float32), weight, 1e-20, RUNTIME)
    np.testing.assert_array_equal(rounded, exact.astype(jnp.bfloat16))
