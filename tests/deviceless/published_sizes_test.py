"""Prefill and decode at the published sizes, without weights: shapes, and a program for one CPU."""

import resource
import time

import jax
import pytest
from published_programs import KINDS, SIZES, SLOTS, arguments, step_of

from dsinfer_jax.config import v41_flash
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model import params
from dsinfer_jax.model.numerics import RUNTIME


def test_bytes_per_token():
    assert caches.bytes_per_token(v41_flash()) == 890


def test_parameter_bytes():
    """About 475 GiB in the stored formats (model.md 11)."""
    gibibytes = caches.tree_bytes(params.abstract(v41_flash())) / 2**30
    assert 470 < gibibytes < 480


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_on_a_laptop(kind):
    """Abstract evaluation takes seconds and no memory to speak of."""
    config = v41_flash()
    before = resource.getrusage(resource.RUSAGE_SELF)
    cache, logits = jax.eval_shape(step_of(config), *arguments(kind, config))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert logits.shape == (SLOTS if kind == "decode" else 1, config.vocab_size)
    expected = caches.abstract(config, SIZES, RUNTIME)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), cache) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), expected
    )
    assert after.ru_utime - before.ru_utime < 30
    assert after.ru_maxrss - before.ru_maxrss < 1 << 20  # KiB


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_compiles_for_one_cpu(kind):
    """The program exists, keeps one cache, and needs little beside weights and cache."""
    config = v41_flash()
    start = time.perf_counter()
    compiled = step_of(config).lower(*arguments(kind, config)).compile()
    memory = compiled.memory_analysis()
    gibibyte = 2**30
    print(
        f"{kind}: compiled in {time.perf_counter() - start:.0f} s; arguments "
        f"{memory.argument_size_in_bytes / gibibyte:.2f} GiB, temporaries "
        f"{memory.temp_size_in_bytes / gibibyte:.2f} GiB, kept in place "
        f"{memory.alias_size_in_bytes / gibibyte:.2f} GiB"
    )
    cache_bytes = caches.tree_bytes(caches.abstract(config, SIZES, RUNTIME))
    assert memory.alias_size_in_bytes >= cache_bytes
    # one dequantised matrix at a time, and the rows of a step: never a layer of experts in bf16
    one_layer_of_experts = 384 * 3 * 5120 * 2304 * 2
    assert memory.temp_size_in_bytes < one_layer_of_experts
