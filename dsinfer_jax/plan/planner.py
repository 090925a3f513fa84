"""One phase planned: memory, traffic, time and programs of a layout, and what would fit instead."""

from collections.abc import Iterator
from dataclasses import dataclass

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.mesh.layout import LayoutError, MeshLayout, check_layout, legal_layouts
from dsinfer_jax.plan.chips import Chip
from dsinfer_jax.plan.collectives import FORMS, Collective, collectives
from dsinfer_jax.plan.load import Load, Wishes, load_of
from dsinfer_jax.plan.memory import DeviceMemory, device_memory
from dsinfer_jax.plan.roofline import Work, link_seconds, work_of

MOST_DEVICES = 1024  # where the search for a layout that fits ends


@dataclass(frozen=True)
class PhasePlan:
    """What a layout of one phase costs.

    Attributes:
        load: the step.
        chip: what it runs on.
        memory: bytes of one device.
        collectives: by the form of exchange that is asked for.
        exchanges: bytes that leave a device in a step, by form of exchange.
        work: of one device, by purpose.
        nearest: when it does not fit: the nearest layout that does, or None if none was found.
    """

    load: Load
    chip: Chip
    memory: DeviceMemory
    collectives: list[Collective]
    exchanges: dict[str, int]
    work: dict[str, Work]
    nearest: MeshLayout | None

    @property
    def device_seconds(self) -> float:
        """Least time of the work of one device."""
        return sum(work.seconds(self.chip) for work in self.work.values())

    @property
    def link_seconds(self) -> float:
        """Least time of all collectives."""
        return sum(link_seconds(collective, self.chip) for collective in self.collectives)

    @property
    def step_seconds(self) -> float:
        """Least time of a step whose collectives do not overlap with work."""
        return self.device_seconds + self.link_seconds

    @property
    def tokens_per_second(self) -> float:
        """Of all devices: prompt tokens, or one token of every request (drafts are extra)."""
        ranks = self.load.layout.data_parallel
        if self.load.phase == "prefill":
            per_step = self.load.rows * self.load.layout.context_parallel
        else:
            per_step = self.load.slots
        return ranks * per_step / self.step_seconds

    @property
    def programs(self) -> list[str]:
        """What is compiled for this phase, on every process."""
        load = self.load
        rows = load.rows * load.layout.context_parallel
        name = f"prefill {rows}" if load.phase == "prefill" else f"decode {load.slots}"
        detail = f"{rows} rows, {load.sequences} sequences, {load.table_width} blocks each"
        if load.layout.context_parallel > 1:
            detail += f", over {load.layout.context_parallel} devices"
        return [f"{name}: {detail}"]

    @property
    def problem(self) -> str | None:
        """Why it does not fit, with the remedy, in one sentence; None if it fits."""
        memory = self.memory
        if memory.fits:
            return None
        parts = memory.weights | {"temporaries": memory.temporaries}
        largest = max(parts, key=lambda part: parts[part])
        cache = memory.needed - memory.fixed
        remedy = (
            f"no layout of up to {MOST_DEVICES} devices fits; ask for fewer requests, a shorter "
            "context or fewer rows"
        )
        if self.nearest is not None:
            remedy = f"the nearest that fits is {self.nearest} ({self.nearest.devices} devices)"
        return (
            f"{self.load.phase} with {self.load.layout} does not fit: a device needs "
            f"{memory.needed / 1e9:.1f} GB and may use {memory.usable / 1e9:.1f} GB; its largest "
            f"part, {largest}, takes {parts[largest] / 1e9:.1f} GB, blocks of the cache "
            f"{cache / 1e9:.1f} GB; {remedy}"
        )


def plan_phase(
    config: ModelConfig, layout: MeshLayout, phase: str, wishes: Wishes, chip: Chip
) -> PhasePlan:
    """Plan one phase.

    Raises:
        LayoutError: the layout is impossible.
        ValueError: a wish is out of range.
    """
    check_layout(layout, config, phase)
    load = load_of(config, layout, phase, wishes)
    memory = _memory(config, load, wishes, chip)
    by_form = {form: collectives(config, load, form) for form in FORMS}
    return PhasePlan(
        load=load,
        chip=chip,
        memory=memory,
        collectives=by_form[wishes.exchange],
        exchanges={form: sum(one.sent for one in found) for form, found in by_form.items()},
        work=work_of(config, load),
        nearest=None if memory.fits else nearest_that_fits(config, layout, phase, wishes, chip),
    )


def _memory(config: ModelConfig, load: Load, wishes: Wishes, chip: Chip) -> DeviceMemory:
    usable = int(chip.memory * wishes.memory_share)
    return device_memory(config, load, usable)


def nearest_that_fits(
    config: ModelConfig, layout: MeshLayout, phase: str, wishes: Wishes, chip: Chip
) -> MeshLayout | None:
    """The layout that fits with the fewest devices, of those at least as many as asked for; among
    them the one most like the one asked for."""
    for devices in _device_counts(layout.devices):
        fitting = []
        for other in legal_layouts(config, phase, devices):
            try:
                load = load_of(config, other, phase, wishes)
            except LayoutError:
                continue  # rows that this cp does not divide
            if _memory(config, load, wishes, chip).fits:
                fitting.append(other)
        if fitting:
            return min(fitting, key=layout.distance)
    return None


def _device_counts(least: int) -> Iterator[int]:
    """The number asked for, then powers of two."""
    yield least
    count = 1 << least.bit_length()
    while count <= MOST_DEVICES:
        yield count
        count *= 2
