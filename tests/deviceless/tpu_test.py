"""The published programs for a TPU slice, built without one: they compile, they fit, they round.

Needs the wheel of the `tpu` extra. Every matrix is cut over all devices along one of its own
dimensions, never along layers or experts, and XLA's partitioner does the rest: a layout good enough
to compile, not the engine's mesh.
"""

import importlib.util
import os
import re
import time
from collections.abc import Callable

import jax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from published_programs import KINDS, arguments, step_of

from dsinfer_jax.config import v41_flash
from dsinfer_jax.model import params
from dsinfer_jax.model.parameter_table import TensorSpec

pytestmark = [
    pytest.mark.deviceless,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu (the tpu extra) is not installed"
    ),
]
TOPOLOGY, SHAPE, AXES = "v6e:8x8", (8, 8), ("rows", "columns")
HBM = 32 << 30


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    description = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY)
    return topologies.make_mesh(description, SHAPE, AXES)


def sharding_rule(mesh: Mesh) -> Callable[[TensorSpec], NamedSharding]:
    """Cut the first dimension that divides over all devices, or over one axis of them."""

    def rule(spec: TensorSpec) -> NamedSharding:
        stacked = len(spec.stacked_shape) - len(spec.shape)
        for axes, parts in ((AXES, 64), (AXES[0], 8)):
            for place, size in enumerate(spec.shape):
                if len(spec.shape) > 1 and size % parts == 0:
                    return NamedSharding(mesh, PartitionSpec(*[None] * (stacked + place), axes))
        return NamedSharding(mesh, PartitionSpec())

    return rule


@pytest.mark.parametrize("kind", KINDS)
def test_compiles_fits_and_rounds(mesh, kind):
    config = v41_flash()
    _, cache, plan = arguments(kind, config)
    everywhere = NamedSharding(mesh, PartitionSpec())
    cache, plan = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
        (cache, plan),
    )
    weights = params.abstract(config, sharding_rule(mesh))
    start = time.perf_counter()
    compiled = step_of(config).lower(weights, cache, plan).compile()
    memory = compiled.memory_analysis()
    print(
        f"{kind} for {TOPOLOGY}: {time.perf_counter() - start:.0f} s; bytes per device: "
        f"arguments {memory.argument_size_in_bytes:,}, temporaries {memory.temp_size_in_bytes:,}, "
        f"kept in place {memory.alias_size_in_bytes:,}"
    )
    assert memory.argument_size_in_bytes + memory.temp_size_in_bytes < HBM
    text = compiled.as_text()
    for narrow in ("bf16", "f8e4m3fn"):  # the rounding points survive
        count = len(re.findall(rf" = {narrow}\[[\d,]*\]\S* convert\(", text))
        print(f"{kind}: {count} roundings to {narrow}")
        assert count > config.num_hidden_layers // 4
