"""Loading onto eight emulated devices: every byte is read once, one slice is on the host."""

import json
import os
import subprocess
import sys
from pathlib import Path

from checkpoint_folders import Saved

PROGRAM = Path(__file__).with_name("sharded_load_program.py")


def test_each_device_reads_only_its_slice(saved: Saved) -> None:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(saved.folder)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["read"] == sum(seen["leaves"])
    # one buffer per distinct slice, of its size; replicated leaves are read once too
    assert seen["buffers"] == seen["slices"]
    assert max(seen["slices"]) == max(seen["leaves"]) // 8
    assert len(seen["leaves"]) < len(seen["slices"]) < 8 * len(seen["leaves"])
