"""The whole product against independently computed tensors, when the golden folder is present."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT.parent / "shared" / "golden"

pytestmark = pytest.mark.skipif(
    not GOLDEN.exists(), reason=f"no golden data: {GOLDEN} is absent, it is not part of the project"
)


@pytest.mark.parametrize(
    "part",
    [
        "ops",
        pytest.param("f32_variant", marks=pytest.mark.slow),
        pytest.param("f32", marks=pytest.mark.slow),
        pytest.param("rt", marks=pytest.mark.slow),
    ],
)
def test_every_group_is_within_its_tolerance(part: str) -> None:
    command = [sys.executable, ROOT / "tools" / "check_golden.py", GOLDEN, "--only", part]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert done.returncode == 0, "\n".join(failed) or done.stderr[-2000:]
    assert " passed, 0 failed" in done.stdout.splitlines()[-1]


def test_a_wrong_tensor_fails(tmp_path: Path) -> None:
    """The tool itself can fail: one altered table entry is reported and sets the exit code."""
    from dsinfer_jax.checkpoint.safetensors import SafetensorsFile, write_safetensors

    (tmp_path / "ckpt").symlink_to(GOLDEN / "ckpt")
    ops = SafetensorsFile(GOLDEN / "ops.safetensors")

    def altered(name: str):
        values = ops.read(name).copy()
        if name == "tables.e2m1":
            values[3] += 1
        return [values]

    write_safetensors(tmp_path / "ops.safetensors", ops.layouts, altered)
    command = [sys.executable, ROOT / "tools" / "check_golden.py", tmp_path, "--only", "ops"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert any(
        line.startswith("FAIL") and "tables.e2m1" in line for line in done.stdout.splitlines()
    )
