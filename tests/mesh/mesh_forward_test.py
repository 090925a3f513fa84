"""Law 5: meshes, exchanges and placements do not change a bit of the logits (design.md 5)."""

from pathlib import Path
from typing import Any

import pytest
from mesh_runs import run_on_devices

from dsinfer_jax.mesh.layout import MeshLayout

PROGRAM = Path(__file__).with_name("mesh_program.py")
KEEP = 16  # the window of eight, the rollback of six, and a little

# (data, expert, context), exchange, kept suffix; 0: whole prompts
FEW = [[(1, 2, 2), "slots", KEEP]]
EVERY = [
    [(data, expert, devices // data // expert), exchange, keep]
    for devices in (1, 2, 4, 8)
    for data in (1, 2, 4, 8)
    for expert in (1, 2, 4, 8)
    if data * expert <= devices and devices % (data * expert) == 0
    for exchange, keep in (("gather", KEEP), ("slots", 0))
]
WIDE = [[(8, 8, 1), "slots", 0], [(16, 1, 4), "gather", 0], [(8, 4, 2), "gather", 0]]


def differences(cases: list[Any], numerics: str, devices: int) -> dict[str, list[str]]:
    return run_on_devices(PROGRAM, {"numerics": numerics, "cases": cases}, devices)


def test_meshes_of_four_devices_give_the_bits_of_one() -> None:
    assert differences(FEW, "runtime", 4) == {}


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["exact", "runtime"])
def test_every_mesh_of_up_to_eight_devices(numerics: str) -> None:
    assert {MeshLayout(*shape).devices for shape, _, _ in EVERY} == {1, 2, 4, 8}
    assert differences(EVERY, numerics, 8) == {}


@pytest.mark.slow
def test_meshes_of_sixty_four_devices() -> None:
    assert differences(WIDE, "runtime", 64) == {}
