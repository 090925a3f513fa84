"""A plan as tables for people, and as JSON for programs."""

from collections.abc import Iterable, Iterator
from typing import Any

from dsinfer_jax.plan.options import Request
from dsinfer_jax.plan.planner import PhasePlan
from dsinfer_jax.plan.roofline import link_seconds
from dsinfer_jax.plan.sizes import active_parameters, backbone_parameters, sizes_by_part


def as_json(request: Request, plans: Iterable[PhasePlan]) -> dict[str, Any]:
    """Everything as numbers: bytes, seconds, counts."""
    config = request.config
    return {
        "model": {
            "name": request.model,
            "backbone_parameters": backbone_parameters(config),
            "active_parameters_decode": active_parameters(config, "decode"),
            "active_parameters_prefill": active_parameters(config, "prefill"),
            "parts": {
                part: {"parameters": size.parameters, "bytes": size.bytes}
                for part, size in sizes_by_part(config).items()
            },
        },
        "chip": {"name": request.chip.name, "memory": request.chip.memory},
        "context": request.wishes.context,
        "phases": {plan.load.phase: _phase_json(plan) for plan in plans},
    }


def _phase_json(plan: PhasePlan) -> dict[str, Any]:
    load, memory = plan.load, plan.memory
    return {
        "layout": {
            "devices": load.layout.devices,
            "dp": load.layout.data_parallel,
            "ep": load.layout.expert_parallel,
            "cp": load.layout.context_parallel,
            "axes": dict(zip(("data", "expert", "context"), load.layout.shape, strict=True)),
        },
        "step": {
            "rows": load.rows,
            "consumer_rows": load.consumer_rows,
            "outputs": load.outputs,
            "draft_rows": load.draft_rows,
            "slots": load.slots,
        },
        "memory": {
            "weights": memory.weights,
            "slots": memory.slots,
            "blocks": {kind: size * memory.blocks_wanted for kind, size in memory.block.items()},
            "temporaries_estimate": memory.temporaries,
            "needed": memory.needed,
            "usable": memory.usable,
            "bytes_per_token": sum(memory.block.values()) / 128,
            "tokens_that_fit": memory.tokens,
        },
        "collectives": [
            {
                "name": one.name,
                "operation": one.operation,
                "group": one.group,
                "calls": one.calls,
                "buffer": one.buffer,
                "bytes": one.bytes,
                "sent": one.sent,
                "seconds": link_seconds(one, plan.chip),
            }
            for one in plan.collectives
        ],
        "sent_by_exchange": plan.exchanges,
        "work": {
            purpose: {
                "flops": dict(work.flops),
                "bytes": work.bytes,
                "compute_seconds": work.compute_seconds(plan.chip),
                "memory_seconds": work.memory_seconds(plan.chip),
            }
            for purpose, work in plan.work.items()
        },
        "device_seconds": plan.device_seconds,
        "link_seconds": plan.link_seconds,
        "step_seconds": plan.step_seconds,
        "tokens_per_second": plan.tokens_per_second,
        "programs": plan.programs,
        "fits": memory.fits,
        "problem": plan.problem,
    }


def as_text(request: Request, plans: Iterable[PhasePlan]) -> str:
    """The tables of the terminal."""
    config = request.config
    lines = [
        request.model,
        f"  backbone {backbone_parameters(config) / 1e9:.1f} G parameters, active per token "
        f"{active_parameters(config, 'decode') / 1e9:.1f} G in decode and "
        f"{active_parameters(config, 'prefill') / 1e9:.1f} G in prefill",
        f"  {request.chip.name}: {request.chip.memory / 1e9:.0f} GB, of which "
        f"{request.wishes.memory_share:.0%} may be used; context {request.wishes.context} tokens",
    ]
    for plan in plans:
        lines += ["", *_phase_lines(plan)]
    return "\n".join(lines)


def _phase_lines(plan: PhasePlan) -> Iterator[str]:
    load = plan.load
    yield f"{load.phase}: {load.layout} = {load.layout.devices} devices"
    if load.phase == "prefill":
        yield (
            f"  a step: {load.rows} rows per device, {load.consumer_rows} of them pass the "
            "consumer half"
        )
    else:
        yield f"  a step: {load.slots} requests and {load.rows} rows per device"
    yield ""
    yield from _memory_lines(plan)
    yield ""
    yield from _time_lines(plan)
    yield ""
    yield from _link_lines(plan)
    yield ""
    for program in plan.programs:
        yield f"  program {program}"
    if plan.problem:
        yield f"  {plan.problem}"


def _memory_lines(plan: PhasePlan) -> Iterator[str]:
    memory = plan.memory
    yield "  on a device                        GB"
    cache = {kind: size * memory.blocks_wanted for kind, size in memory.block.items()}
    groups = (
        memory.weights,
        {f"{kind}, {plan.load.slots} slots": size for kind, size in memory.slots.items()},
        {f"{kind}": size for kind, size in cache.items()},
        {"temporaries (estimate)": memory.temporaries},
    )
    for group in groups:
        for part, size in group.items():
            yield f"  {part:28} {size / 1e9:8.2f}"
    yield f"  {'together':28} {memory.needed / 1e9:8.2f} of {memory.usable / 1e9:.2f}"
    ranks = plan.load.layout.data_parallel
    yield (
        f"  {memory.tokens:,} tokens fit beside the weights of a rank, {memory.tokens * ranks:,} "
        f"in all; {sum(memory.block.values()) / 128:.0f} bytes each"
    )


def _time_lines(plan: PhasePlan) -> Iterator[str]:
    yield "  least time of a step, ms      products   memory"
    for purpose, work in plan.work.items():
        if work.seconds(plan.chip):
            yield (
                f"  {purpose:28} {work.compute_seconds(plan.chip) * 1e3:9.3f} "
                f"{work.memory_seconds(plan.chip) * 1e3:8.3f}"
            )
    yield (
        f"  device {plan.device_seconds * 1e3:.2f} ms, links {plan.link_seconds * 1e3:.2f} ms: "
        f"{plan.step_seconds * 1e3:.2f} ms one after the other; {plan.tokens_per_second:,.0f} "
        "tokens per second"
    )


def _link_lines(plan: PhasePlan) -> Iterator[str]:
    if not plan.collectives:
        yield "  nothing crosses links"
        return
    yield "  crosses links in a step           MB   calls  devices        ms"
    for one in plan.collectives:
        yield (
            f"  {one.name:28} {one.sent / 1e6:8.2f} {one.calls:7} {one.group:8} "
            f"{link_seconds(one, plan.chip) * 1e3:9.3f}  {one.operation}"
        )
    by_form = ", ".join(f"{form} {sent / 1e6:.0f} MB" for form, sent in plan.exchanges.items())
    yield f"  by form of exchange: {by_form}"
