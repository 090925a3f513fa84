"""Weights on a mesh of two processes: each reads its share, and both store one tree together."""

import json
import os
from pathlib import Path

import pytest
from loading_cases import model, save
from process_runs import ProcessRun

from dsinfer_jax.model.parameter_table import TensorSpec, parameter_table

PROGRAM = Path(__file__).with_name("loading_process.py")
PROCESSES, DEVICES = 2, 2  # of each


@pytest.mark.multiprocess
def test_each_process_reads_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, params = model()
    folder = tmp_path / "checkpoint"
    save(folder, config, params)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, PROGRAM.parents[:2])))
    with ProcessRun([str(PROGRAM)], [str(folder)], PROCESSES, DEVICES, tmp_path) as run:
        ended = [run.ended(process) for process in range(PROCESSES)]
    table = parameter_table(config)
    for process, one in enumerate(ended):
        assert one.code == 0, one.err[-4000:]
        found = json.loads(one.out.splitlines()[-1])
        assert found.pop("read") == sum(share(spec, process) for spec in table)
        assert found == {"from the checkpoint": [], "from the layout before": []}
    assert sum(share(spec, 0) for spec in table) < 0.8 * sum(spec.nbytes for spec in table)


def share(spec: TensorSpec, process: int) -> int:
    """Bytes of a leaf for one of two processes, which have half of the experts and rows each."""
    if spec.experts is not None:
        return spec.nbytes // PROCESSES
    if "engram_rows" in spec.axes:
        devices = PROCESSES * DEVICES
        held = -(-spec.shape[0] // devices) * DEVICES  # the last ones behind the table
        rows = held if process == 0 else spec.shape[0] - held
        return spec.nbytes // spec.shape[0] * rows
    return spec.nbytes
