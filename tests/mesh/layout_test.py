"""Layouts of the mesh: which are legal, and the sentence for those that are not."""

import re

import pytest

from dsinfer_jax.config import tiny, v41_flash
from dsinfer_jax.mesh.layout import LayoutError, MeshLayout, check_layout, legal_layouts
from dsinfer_jax.mesh.rules import RULES, mesh_axes, parts
from dsinfer_jax.model.parameter_table import parameter_table


@pytest.mark.parametrize(
    ("dp", "ep", "cp", "shape"),
    [
        (64, 64, 1, (1, 64, 1)),
        (8, 2, 1, (4, 2, 1)),
        (2, 8, 4, (1, 2, 4)),
        (4, 4, 2, (2, 2, 2)),
        (1, 4, 4, (1, 1, 4)),
    ],
)
def test_axes_of_the_command_line(dp: int, ep: int, cp: int, shape: tuple[int, ...]) -> None:
    layout = MeshLayout.of(dp, ep, cp)
    assert layout.shape == shape
    assert layout.devices == dp * cp
    assert (layout.data_parallel, layout.expert_parallel, layout.context_parallel) == (dp, ep, cp)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((8, 3, 1), "ep 3 is impossible with dp 8 and cp 1: .* so ep must be 1, 2, 4 or 8"),
        ((4, 2, 4), "ep 2 is impossible with dp 4 and cp 4: .* so ep must be 4, 8 or 16"),
        ((1, 1, 4), "so ep must be 4$"),
        ((0, 1, 1), "dp is 0; it must be 1 or more"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(sizes: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence):
        MeshLayout.of(*sizes)


def test_other_numbers_of_devices_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"takes 16 devices, and there are 8; .* is dp 8, ep 8"):
        check_layout(MeshLayout.of(16, 16), v41_flash(), "decode", 8)


def test_decode_has_no_context_axis() -> None:
    with pytest.raises(LayoutError, match=re.escape("cp is 4 in decode")) as error:
        check_layout(MeshLayout(1, 2, 4), v41_flash(), "decode")
    assert str(error.value).endswith("use dp 8, ep 8, cp 1")
    check_layout(MeshLayout(1, 2, 4), v41_flash(), "prefill")


def test_no_more_ranks_than_experts() -> None:
    check_layout(MeshLayout(8, 8), tiny(), "decode")
    with pytest.raises(LayoutError, match="ep is 16, more than the 8 experts"):
        check_layout(MeshLayout(1, 16), tiny(), "decode")


@pytest.mark.parametrize("devices", [1, 2, 4, 6, 8, 64])
def test_legal_layouts_are_all_that_pass(devices: int) -> None:
    config = tiny()
    for phase in RULES:
        legal = set(legal_layouts(config, phase, devices))
        for data in range(1, devices + 1):
            for expert in range(1, devices // data + 1):
                context, rest = divmod(devices, data * expert)
                if rest:
                    continue
                layout = MeshLayout(data, expert, context)
                try:
                    check_layout(layout, config, phase, devices)
                    assert layout in legal
                except LayoutError:
                    assert layout not in legal


def test_every_weight_has_a_rule() -> None:
    layout = MeshLayout(2, 4, 2)
    for phase in RULES:
        spread = {
            spec.path
            for spec in parameter_table(v41_flash())
            if any(mesh_axes(spec.stacked_axes, phase))
        }
        assert {path[0] for path in spread} == {"experts", "engrams", "draft"}
        assert parts("experts", layout, phase) == 8
        assert parts("engram_rows", layout, phase) == 16


def test_wrong_axes_are_refused() -> None:
    with pytest.raises(LayoutError, match="'width' has no rule"):
        mesh_axes(("width",), "decode")
    with pytest.raises(LayoutError, match="experts and engram_rows both lie along expert"):
        mesh_axes(("experts", "engram_rows"), "decode")
