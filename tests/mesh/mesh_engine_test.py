"""Law 5 for the engine: tokens and log-probabilities on a mesh are those of one device."""

from pathlib import Path
from typing import Any

import pytest
from mesh_runs import run_on_devices

PROGRAM = Path(__file__).with_name("engine_program.py")
EVERY_STEP = {"redundant_experts": 2, "rebalance_steps": 1, "balance_window": 1}
FEW: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"drafter": "dspark", "keep_tokens": 32},
        # weights lie in memory as on TPUs
        {"dp": 2, "ep": 4, "cp": 2, "outputs_fastest": True, **EVERY_STEP},
    ),
]
MANY = [
    ({"drafter": "lookup"}, {"dp": 4, "ep": 2}),
    ({}, {"dp": 8}),
    ({"drafter": "dspark", "draft_tokens": 3}, {"dp": 8, "ep": 4}),
    ({"more_tokens": 60}, {"dp": 8, "ep": 4, **EVERY_STEP}),
    ({"keep_tokens": 32, "prefix_cache": "bounded"}, {"dp": 4, "ep": 8, "cp": 2}),
    ({"asynchronous": False, "drafter": "lookup"}, {"dp": 1, "ep": 8, "cp": 8}),
]


def test_an_engine_on_four_devices_answers_as_one_on_one() -> None:
    assert run_on_devices(PROGRAM, FEW, 4) == {}


@pytest.mark.slow
def test_an_engine_on_eight_devices_answers_as_one_on_one() -> None:
    assert run_on_devices(PROGRAM, MANY, 8) == {}
