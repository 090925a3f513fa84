"""Moves of expert weights between devices: what a plain index of the whole array gives."""

from pathlib import Path

from mesh_runs import run_on_devices

PROGRAM = Path(__file__).with_name("moves_program.py")


def test_weights_go_where_they_are_sent() -> None:
    assert run_on_devices(PROGRAM, [[1, 4, 1], [2, 2, 1], [1, 2, 2]], 4) == {}
