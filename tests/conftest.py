"""What all tests share: the CPU, and compiled programs kept between runs."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# a second run of the tests then compiles nothing; the folder is ignored by git
_PROGRAMS = Path(__file__).parents[1] / ".cache" / "test-programs"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
