"""How long the decode program of the tiny model compiles for emulated devices.

    python tools/bench_mesh_compile.py                      # 64 devices, every one a rank
    python tools/bench_mesh_compile.py --devices 8 64

Prints for each mesh the seconds of tracing and compiling and the bytes of temporaries. Nothing is
read from the cache of compiled programs. Every mesh has a process of its own: the number of devices
is fixed when jax starts.
"""

import argparse
import os
import subprocess
import sys

OF_ONE = "--of-one"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[64])
    parser.add_argument(OF_ONE, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of_one:
        compile_for(options.of_one)
        return
    for devices in options.devices:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        }
        subprocess.run(
            [sys.executable, __file__, OF_ONE, str(devices)], env=environment, check=True
        )


def compile_for(devices: int) -> None:
    """In the process of one mesh."""
    from dsinfer_jax.config import tiny
    from dsinfer_jax.engine.compilation import CompileTarget, compile_program, program_shapes
    from dsinfer_jax.engine.devices import MeshDevices
    from dsinfer_jax.engine.drafters import make_drafter
    from dsinfer_jax.engine.engine_config import EngineConfig
    from dsinfer_jax.engine.steps import empty_engine_state
    from dsinfer_jax.mesh.layout import MeshLayout
    from dsinfer_jax.model.init import init
    from dsinfer_jax.model.numerics import RUNTIME

    config = tiny()
    layout = MeshLayout.of(devices, min(devices, config.n_routed_experts))
    sizes = EngineConfig.of(config, max_model_len=512, layout=layout)
    mesh = MeshDevices(config, sizes, RUNTIME)
    drafter = make_drafter(sizes, config, RUNTIME)
    state = empty_engine_state(sizes.slots * sizes.ranks, config.vocab_size, drafter)
    target = CompileTarget(
        config, RUNTIME, sizes, drafter, mesh, mesh.params(init(config, 0)), mesh.by_rank(state)
    )
    (decode,) = (one for one in program_shapes(config, sizes) if one.name.startswith("decode"))
    print(f"{layout}: {compile_program(decode, target).report}", flush=True)


if __name__ == "__main__":
    main()
