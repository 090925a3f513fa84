"""Weights on a mesh: every device gets the bits that belong there, however they were stored."""

from pathlib import Path

from mesh_runs import output_on_devices

PROGRAM = Path(__file__).with_name("loading_program.py")
LAYOUTS = [((1, 4, 1), 0), ((2, 1, 2), 3), ((1, 3, 1), 1)]  # and copies on each device


def test_leaves_go_straight_to_their_places() -> None:
    found = output_on_devices(PROGRAM, LAYOUTS, 4)
    assert len(found) == 3 * len(LAYOUTS) + 1
    assert {case: leaves for case, leaves in found.items() if leaves} == {}
