"""Exchanges of rows: every pair is computed where its expert is, and comes back."""

from pathlib import Path

import pytest
from mesh_runs import output_on_devices

from dsinfer_jax.mesh.exchange import by_gather, by_ragged, by_slots, exchange_for

PROGRAM = Path(__file__).with_name("exchange_program.py")
CASES = [(4, 2), (4, 5), (2, 3), (1, 4)]  # devices, places of each


def test_all_exchanges_bring_every_pair_to_its_expert_and_back() -> None:
    found = output_on_devices(PROGRAM, CASES, 4)
    assert len(found) == len(CASES) * 3 * (3 + 2)
    assert {case: what for case, what in found.items() if what} == {}


def test_auto_takes_what_suits_the_platform() -> None:
    assert exchange_for("auto", "tpu") is by_ragged
    assert exchange_for("auto", "gpu") is exchange_for("auto", "cpu") is by_slots
    assert exchange_for("gather", "tpu") is by_gather
    assert exchange_for("ragged", "gpu") is by_ragged


def test_what_cpus_have_no_collective_for_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exchange is 'ragged'.*'slots' or 'gather'"):
        exchange_for("ragged", "cpu")
