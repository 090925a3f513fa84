"""How long weights take to their places on a mesh, by where they come from.

    python tools/bench_loading.py [--megabytes 300] [--devices 8] [--repetitions 7] [--cold]

Makes a checkpoint with random bits, and starts a process for every measurement; the ways take
turns, so that other work on the machine meets all of them. What is measured is the loading alone,
and by how much the process's private memory grew at most (pages of files do not count). --cold
drops the files from the cache of the operating system first. Prints medians with quartiles, and a
line of JSON.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dsinfer_jax import demo
from dsinfer_jax.checkpoint import load_native, load_pretrained, save_pretrained
from dsinfer_jax.checkpoint.orbax_tree import load_orbax, save_orbax
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.devices import PHASE, MeshDevices
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.weights import leaf_places
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.model.numerics import RUNTIME
from dsinfer_jax.model.parameter_table import MEMORY_DTYPES, TensorSpec, parameter_table
from dsinfer_jax.model.params import build_tree

WHOLE, CHECKPOINT, FIRST, LEAF_FILES, ORBAX = WAYS = (
    "whole, then to places", "checkpoint", "first native start", "leaf files", "orbax",
)  # fmt: skip
SIZES = {"hidden_size": 512, "moe_intermediate_size": 512, "engram_vocab_size": 100_003}
LEAST_EXPERTS = 16


def make_checkpoint(folder: Path, megabytes: int) -> float:
    """Save a model of about so many MB, most of them experts; returns how many it has."""
    smallest = demo_model(LEAST_EXPERTS)
    more = megabytes * 1e6 - nbytes(smallest)
    each = (nbytes(demo_model(2 * LEAST_EXPERTS)) - nbytes(smallest)) / LEAST_EXPERTS
    config = demo_model(LEAST_EXPERTS + max(0, round(more / each / 8)) * 8)
    random = np.random.default_rng(0)

    def leaf(spec: TensorSpec) -> np.ndarray:
        dtype = np.dtype(MEMORY_DTYPES[spec.dtype])
        return random.integers(0, 256, spec.nbytes, np.uint8).view(dtype).reshape(
            spec.stacked_shape
        )  # fmt: skip

    save_pretrained(build_tree(config, leaf), config, folder, tokenizer_folder=demo.FOLDER)
    return nbytes(config) / 1e6


def demo_model(experts: int) -> ModelConfig:
    """The demo model, wider, with its tokenizer."""
    return ModelConfig.from_pretrained(demo.FOLDER).with_overrides(
        n_routed_experts=experts, **SIZES
    )


def nbytes(config: ModelConfig) -> int:
    return sum(spec.nbytes for spec in parameter_table(config))


def measure(way: str, folder: Path, devices: int) -> dict[str, float]:
    """Load once, in this process."""
    import jax

    source, native = folder / "checkpoint", folder / way
    config = ModelConfig.from_pretrained(source)
    layout = MeshLayout.of(dp=devices, ep=devices)
    mesh = MeshDevices(config, EngineConfig.of(config, layout=layout), RUNTIME)
    place = leaf_places(mesh.mesh, mesh.placements, PHASE)
    ways: dict[str, Callable[[], Any]] = {
        WHOLE: lambda: mesh.params(load_pretrained(source)[1]),
        CHECKPOINT: lambda: load_pretrained(source, place=place),
        FIRST: lambda: load_native(native, source, place=place),
        LEAF_FILES: lambda: load_native(native, source, place=place),
        ORBAX: lambda: load_orbax(native, config, place=place, source=source),
    }
    with MemoryWatch() as memory:
        start = time.perf_counter()
        jax.block_until_ready(ways[way]())
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "megabytes": memory.most - memory.first}


class MemoryWatch:
    """The largest private memory of this process in a block, looked at every few milliseconds."""

    def __init__(self) -> None:
        self.first = self.most = private_megabytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.most = max(self.most, private_megabytes())


def private_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon"))


def prepare(folder: Path) -> None:
    """Write both native forms."""
    source = folder / "checkpoint"
    config, params = load_native(folder / LEAF_FILES, source)
    save_orbax(folder / ORBAX, params, config, source=source)


def in_process(arguments: list[str], devices: int) -> str:
    """Run this program again, on emulated devices; returns the last line of its output."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return (done.stdout.splitlines() or [""])[-1]


def drop_from_cache(folder: Path) -> None:
    """Let the next read come from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare(options: argparse.Namespace, folder: Path) -> None:
    size = make_checkpoint(folder / "checkpoint", options.megabytes)
    in_process(["--prepare", str(folder)], 1)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repetitions):
        for way in WAYS:
            if way == FIRST:
                shutil.rmtree(folder / FIRST, ignore_errors=True)
            if options.cold:
                drop_from_cache(folder)
            line = in_process(["--measure", way, str(folder)], options.devices)
            found[way].append(json.loads(line))
    cache = "cold" if options.cold else "warm"
    print(f"{size:.0f} MB onto {options.devices} devices, {cache}, {options.repetitions} turns")
    usual = np.median([one["seconds"] for one in found[CHECKPOINT]])
    for way in WAYS:
        low, middle, high = np.percentile([one["seconds"] for one in found[way]], [25, 50, 75])
        memory = np.median([one["megabytes"] for one in found[way]])
        print(
            f"{way:>22}: {middle:.2f} s ({low:.2f} to {high:.2f}), {middle / usual:.2f} of the "
            f"checkpoint's, {memory:.0f} MB more at most"
        )
    print(json.dumps({"megabytes": size, "devices": options.devices, "cache": cache} | found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--prepare", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare)
    elif options.measure:
        import jax

        way, folder = options.measure
        print(json.dumps(measure(way, Path(folder), len(jax.devices()))))
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(options, Path(folder))


if __name__ == "__main__":
    main()
