"""What all tests share: the CPU, and compiled programs kept between runs."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# a second run of the tests then compiles nothing; the folder is ignored by git
_PROGRAMS = Path(__file__).parents[1] / ".cache" / "test-programs"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

# Linux lets a process map 65 530 pieces of memory, and every program that XLA compiled for a CPU
# has about eight. A process without any left aborts inside the compiler.
_MAPPED = Path("/proc/self/maps")
MOST_MAPPED = 30_000


@pytest.fixture(scope="module", autouse=True)
def _drop_programs() -> Iterator[None]:
    """After a file of tests, forget what was compiled before there is too much of it."""
    yield
    if _MAPPED.exists() and _MAPPED.read_bytes().count(b"\n") > MOST_MAPPED:
        import jax  # here: files that need no jax do not wait for it

        jax.clear_caches()
        gc.collect()
