"""How many devices lie along each axis of the mesh, and which layouts are possible (engine.md 7.1).

Three axes, in this order, `context` fastest:

    data     groups of devices that each hold all experts
    expert   ranks of a group that compute different requests
    context  ranks that share the rows of one request (prefill only, engine.md 8)

Experts are spread over `expert` and `context`, requests over `data` and `expert`. In the words of
the command line: dp = data * expert, ep = expert * context, cp = context. Attention and dense
weights are on every device; there is no tensor parallelism.

Pure Python: the planner uses it where there are no devices.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dsinfer_jax.config import ModelConfig

AXES = ("data", "expert", "context")
PHASES = ("prefill", "decode")


class LayoutError(ValueError):
    """A layout that is impossible; one sentence says why, and what would be possible."""


@dataclass(frozen=True)
class MeshLayout:
    """Sizes of the axes of one phase's mesh."""

    data: int
    expert: int
    context: int = 1

    def __post_init__(self) -> None:
        for name in AXES:
            if getattr(self, name) < 1:
                raise LayoutError(
                    f"the {name} axis has {getattr(self, name)} devices; it must have 1 or more"
                )

    @classmethod
    def of(cls, dp: int, ep: int, cp: int = 1) -> "MeshLayout":
        """The layout in which `dp` ranks compute different requests, each with `cp` devices, and
        every expert is once in `ep` consecutive devices.

        Raises:
            LayoutError: the sizes do not divide each other.
        """
        for name, value in (("dp", dp), ("ep", ep), ("cp", cp)):
            if value < 1:
                raise LayoutError(f"{name} is {value}; it must be 1 or more")
        devices = dp * cp
        possible = [size for size in _divisors(devices) if size % cp == 0]
        if ep not in possible:
            raise LayoutError(
                f"ep {ep} is impossible with dp {dp} and cp {cp}: a group of experts is whole "
                f"requests on {devices} devices, so ep must be {_any_of(possible)}"
            )
        return cls(data=devices // ep, expert=ep // cp, context=cp)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sizes in the order of AXES."""
        return self.data, self.expert, self.context

    @property
    def devices(self) -> int:
        return self.data * self.expert * self.context

    @property
    def data_parallel(self) -> int:
        """Ranks with requests of their own."""
        return self.data * self.expert

    @property
    def expert_parallel(self) -> int:
        """Devices that together hold every expert once (or more, with copies)."""
        return self.expert * self.context

    @property
    def context_parallel(self) -> int:
        return self.context

    def size(self, axes: tuple[str, ...]) -> int:
        """Devices along several axes together."""
        size = 1
        for axis in axes:
            size *= getattr(self, axis)
        return size

    def distance(self, other: "MeshLayout") -> float:
        """How unlike two layouts are: doubling dp, ep or cp counts 1 each."""
        pairs = (
            (self.data_parallel, other.data_parallel),
            (self.expert_parallel, other.expert_parallel),
            (self.context, other.context),
        )
        return sum(abs(math.log2(mine / theirs)) for mine, theirs in pairs)

    def __str__(self) -> str:
        return f"dp {self.data_parallel}, ep {self.expert_parallel}, cp {self.context}"


def check_layout(
    layout: MeshLayout, config: ModelConfig, phase: str, devices: int | None = None
) -> None:
    """Refuse a layout that a phase of this model cannot have.

    Args:
        phase: one of PHASES.
        devices: how many there are; None: as many as the layout wants.

    Raises:
        LayoutError: one sentence with what would be possible.
    """
    if phase not in PHASES:
        raise LayoutError(f"phase is {phase!r}; it must be one of {', '.join(PHASES)}")
    if devices is not None and layout.devices != devices:
        possible = sorted(legal_layouts(config, phase, devices), key=layout.distance)
        raise LayoutError(
            f"{layout} takes {layout.devices} devices, and there are {devices}; with these the "
            f"nearest is {possible[0]}"
        )
    if phase == "decode" and layout.context > 1:
        raise LayoutError(
            f"cp is {layout.context} in decode, where a step has no long rows to share; use "
            f"{MeshLayout(layout.data, layout.expert * layout.context)}"
        )
    if layout.expert_parallel > most_ranks(config):
        raise LayoutError(
            f"ep is {layout.expert_parallel}, more than the {most_ranks(config)} experts that the "
            f"model has: devices would compute copies only; use an ep of at most "
            f"{most_ranks(config)} and more groups"
        )


def most_ranks(config: ModelConfig) -> int:
    """The widest expert group: one expert of the backbone on each device."""
    return config.n_routed_experts


def legal_layouts(config: ModelConfig, phase: str, devices: int) -> Iterator[MeshLayout]:
    """Every layout of so many devices that a phase of this model can have."""
    for context in _divisors(devices) if phase == "prefill" else [1]:
        for expert in _divisors(devices // context):
            layout = MeshLayout(devices // context // expert, expert, context)
            if layout.expert_parallel <= most_ranks(config):
                yield layout


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _any_of(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    return ", ".join(map(str, numbers[:-1])) + f" or {numbers[-1]}"
