"""Which mesh axes each logical axis lies along: one table for each phase.

Arrays say what their dimensions are (`parameter_table` for weights); this table says how a phase
spreads them. Pure Python: the planner counts bytes with it, programs make shardings of it.
"""

from collections.abc import Iterable

from dsinfer_jax.mesh.layout import AXES, LayoutError, MeshLayout

WHOLE: tuple[str, ...] = ()  # on every device

_COMMON: dict[str, tuple[str, ...]] = {
    # weights
    "layers": WHOLE,  # scanned over, so never spread
    "vocab": WHOLE,
    "hidden": WHOLE,
    "heads": WHOLE,
    "ffn": WHOLE,
    "experts": ("expert", "context"),
    "engram_rows": AXES,
    # caches and steps: a rank's requests and their keys are its own
    "slots": ("data", "expert"),
    "blocks": ("data", "expert"),
    "sequences": ("data", "expert"),
}
RULES: dict[str, dict[str, tuple[str, ...]]] = {
    "prefill": _COMMON | {"rows": AXES},  # the rows of one request lie along context
    "decode": _COMMON | {"rows": ("data", "expert")},
}


def mesh_axes(logical: Iterable[str | None], phase: str) -> tuple[tuple[str, ...], ...]:
    """Mesh axes of each dimension of an array; none for a dimension without a logical axis.

    Raises:
        LayoutError: an unknown axis, or two dimensions along one mesh axis.
    """
    rules, result = RULES[phase], []
    taken: dict[str, str] = {}
    for name in logical:
        if name is not None and name not in rules:
            raise LayoutError(f"logical axis {name!r} has no rule; add it to RULES")
        axes = WHOLE if name is None else rules[name]
        for axis in axes:
            if axis in taken:
                raise LayoutError(
                    f"{taken[axis]} and {name} both lie along {axis} in {phase}; an array can use "
                    "a mesh axis once"
                )
            taken[axis] = str(name)
        result.append(axes)
    return tuple(result)


def parts(logical: str, layout: MeshLayout, phase: str) -> int:
    """Into how many parts a layout cuts a dimension with this logical axis."""
    return layout.size(RULES[phase][logical])
