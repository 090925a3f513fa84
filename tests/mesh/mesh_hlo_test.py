"""Bytes that cross links: compiled programs against the planner's formulas."""

from pathlib import Path
from typing import Any

import pytest
from mesh_runs import output_on_devices

from dsinfer_jax.mesh.hlo import collective_bytes, gathered_shapes

PROGRAM = Path(__file__).with_name("hlo_program.py")

TEXT = """
%body (p: (u8[8,4])) -> (u8[8,4]) {
  %g = u8[8,4]{1,0} all-gather(%x), channel_id=1, replica_groups={{0,1}}, dimensions={0}
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %w = (u8[8,4]) while(%t), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %s = f32[2]{0} reduce-scatter(f32[4]{0} %a), replica_groups={{0,1}}, to_apply=%add
  ROOT %r = (u16[2,3]{1,0}, u16[2,3]{1,0}) all-to-all(%y, %z), replica_groups={{0,1}}
}
"""


def test_bytes_of_a_text() -> None:
    assert collective_bytes(TEXT) == {
        "all-gather": 3 * 32, "reduce-scatter": 16, "all-to-all": 24,
    }  # fmt: skip


def test_shapes_that_are_gathered() -> None:
    assert gathered_shapes(TEXT) == {(8, 4)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [[4, 4, 1, "slots", 0], [4, 2, 1, "gather", 32], [2, 4, 2, "slots", 32]]
)
def test_programs_send_what_is_planned(case: list[Any]) -> None:
    for program in output_on_devices(PROGRAM, [case], 4):
        found, planned = sum(program["found"].values()), sum(program["planned"].values())
        assert found == pytest.approx(planned, rel=0.05), program
        assert program["gathered"] == [], program
