"""Programs on emulated devices: the number of devices is fixed when jax starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_on_devices(program: Path, request: Any, devices: int) -> dict[str, list[str]]:
    """What differs, by case; cases without differences are left out."""
    found = output_on_devices(program, request, devices)
    return {case: what for case, what in found.items() if what}


def output_on_devices(program: Path, request: Any, devices: int) -> Any:
    """What a program prints as JSON in its last line."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(program.parents[1]),
    }
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(request)],
        capture_output=True, text=True, env=environment, timeout=3600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
