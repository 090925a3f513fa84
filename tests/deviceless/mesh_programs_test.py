"""The engine's programs at the published sizes for 64 chips, built without one (`-m deviceless`).

In decode every chip is a rank with requests of its own and its share of the experts; in prefill
four chips share the rows of a prompt. Printed are bytes of a device and what crosses links.
"""

import importlib.util
import os
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import pytest
from jax.experimental import topologies
from topology_devices import TopologyDevices

from dsinfer_jax.config import v41_flash
from dsinfer_jax.engine.compilation import CompileTarget, compile_program, program_shapes
from dsinfer_jax.engine.drafters import make_drafter
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.steps import empty_engine_state
from dsinfer_jax.mesh.hlo import collective_bytes
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.model import params
from dsinfer_jax.model.cache import tree_bytes
from dsinfer_jax.model.numerics import RUNTIME

pytestmark = pytest.mark.deviceless
CONTEXT, SLOTS, ROWS, KEPT = 8192, 8, 1024, 256
LAYOUTS = {"decode": (64, 64, 1), "prefill": (16, 64, 4)}  # dp, ep, cp


@dataclass(frozen=True)
class Chip:
    """A kind of device.

    Attributes:
        module: of the wheel that compiles for it.
        extra: of the package that installs the wheel.
    """

    module: str
    extra: str
    memory: int

    def devices(self) -> list[jax.Device]:
        """Sixty-four of them."""
        if self.module == "libtpu":
            os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
            return list(
                topologies.get_topology_desc(platform="tpu", topology_name="v6e:8x8").devices
            )
        config = Path(__file__).with_name("h200.txtpb").read_text()
        found = topologies.get_topology_desc(
            platform="cuda", target_config=config, topology="8x1x8"
        )
        return list(found.devices)


CHIPS = {
    "v6e": Chip("libtpu", "tpu", 32 << 30),
    "H200": Chip("jax_cuda12_plugin", "gpu", 141 * 10**9),
}


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("name", CHIPS)
def test_sixty_four_chips(name: str, kind: str) -> None:
    chip = CHIPS[name]
    if importlib.util.find_spec(chip.module) is None:
        pytest.skip(f"{chip.module} (the {chip.extra} extra) is not installed")
    config = v41_flash()
    sizes = EngineConfig.of(
        config, max_model_len=CONTEXT, slots=SLOTS, prefill_rows=(ROWS,), keep_tokens=KEPT,
        layout=MeshLayout.of(*LAYOUTS[kind]),
    )  # fmt: skip
    devices = TopologyDevices(config, sizes, RUNTIME, chips=chip.devices())
    weights = devices.params(params.abstract(config))
    drafter = make_drafter(sizes, config, RUNTIME)
    empty = empty_engine_state(sizes.slots * sizes.ranks, config.vocab_size, drafter)
    target = CompileTarget(
        config, RUNTIME, sizes, drafter, devices, weights, devices.by_rank(empty)
    )
    (shape,) = (one for one in program_shapes(config, sizes) if one.name.startswith(kind))
    start = time.perf_counter()
    compiled = compile_program(shape, target).compiled
    memory = compiled.memory_analysis()
    cache = tree_bytes(devices.abstract_cache()) // sizes.ranks
    print(
        f"\n{kind} for 64 x {name}: {time.perf_counter() - start:.0f} s; bytes per device: "
        f"arguments {memory.argument_size_in_bytes:,}, temporaries "
        f"{memory.temp_size_in_bytes:,}, kept in place {memory.alias_size_in_bytes:,} "
        f"(cache {cache:,})"
    )
    for operation, size in sorted(collective_bytes(compiled.as_text()).items()):
        print(f"  {operation}: {size:,} bytes")
    assert memory.argument_size_in_bytes + memory.temp_size_in_bytes < chip.memory
    assert memory.alias_size_in_bytes >= cache
