"""The layouts of a plan as a picture (SVG): devices with what they hold, memory by part."""

import textwrap
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

from dsinfer_jax.mesh.expert_placement import first_expert_at
from dsinfer_jax.plan.planner import PhasePlan

WIDTH = 1000
_MARGIN, _BAR, _LINE = 20, 26, 18
_CELL_WIDTH, _CELL_HEIGHT, _COLUMNS = 116, 48, 8
_MOST_CELLS = 64  # more devices than this are summed up in a line
_COLOURS = (
    "#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c",
    "#ccb974", "#64b5cd", "#2f4b7c", "#a05195", "#f95d6a", "#ffa600",
)  # fmt: skip
_GROUP_COLOURS = ("#eef3fb", "#fdf1e7", "#ecf6ee", "#fbecec", "#f1eff7", "#f4f0ec")


def draw(plans: Iterable[PhasePlan], experts: int) -> str:
    """An SVG document with one panel for each phase.

    Args:
        experts: of a backbone layer.
    """
    body: list[str] = []
    top = _MARGIN
    for plan in plans:
        panel, height = _panel(plan, experts, top)
        body += panel
        top += height + _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{top}" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )


def _panel(plan: PhasePlan, experts: int, top: int) -> tuple[list[str], int]:
    layout = plan.load.layout
    title = (
        f"{plan.load.phase} on {plan.chip.name}: {layout}, {layout.devices} devices, a step of at "
        f"least {plan.step_seconds * 1e3:.1f} ms"
    )
    lines = [_text(_MARGIN, top + 14, title, size=16)]
    shown = min(layout.devices, _MOST_CELLS)
    cells_top = top + 28
    for device in range(shown):
        lines += _cell(plan, experts, device, cells_top)
    bottom = cells_top + -(-shown // _COLUMNS) * (_CELL_HEIGHT + 4) + 14
    if shown < layout.devices:
        lines.append(_text(_MARGIN, bottom, f"and {layout.devices - shown} more devices"))
        bottom += _LINE
    bar, height = _memory_bar(plan, bottom)
    return lines + bar, bottom + height - top


def _cell(plan: PhasePlan, experts: int, device: int, top: int) -> Iterator[str]:
    """One device: its rank, its part of the rows, its experts; coloured by expert group."""
    layout = plan.load.layout
    rank, context = divmod(device, layout.context)
    group, expert_rank = divmod(device, layout.expert_parallel)
    sizes = plan.load.places(experts)
    own = slice(expert_rank * sizes.per_rank, (expert_rank + 1) * sizes.per_rank)
    held = first_expert_at(sizes, 1)[0, own].tolist()
    left = _MARGIN + device % _COLUMNS * (_CELL_WIDTH + 4)
    upper = top + device // _COLUMNS * (_CELL_HEIGHT + 4)
    colour = _GROUP_COLOURS[group % len(_GROUP_COLOURS)]
    yield (
        f'<rect x="{left}" y="{upper}" width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}" rx="4" '
        f'fill="{colour}" stroke="#888"/>'
    )
    part = f", part {context + 1}/{layout.context}" if layout.context > 1 else ""
    copies = max(0, min(own.stop - experts, sizes.per_rank))  # they move later: this is the start
    if copies == sizes.per_rank:
        names = f"copies of {held[0]}-{held[-1]}"
    else:
        names = f"{held[0]}-{held[-1 - copies]}"
        names = f"{names} + copies" if copies else f"experts {names}"
    yield _text(left + 6, upper + 15, f"device {device}, group {group}", size=11)
    yield _text(left + 6, upper + 29, f"rank {rank}{part}", size=11)
    yield _text(left + 6, upper + 43, names, size=11)


def _memory_bar(plan: PhasePlan, top: int) -> tuple[list[str], int]:
    """A device's memory, part by part, against what may be used; returns its height too."""
    memory = plan.memory
    blocks = {kind: size * memory.blocks_wanted for kind, size in memory.block.items()}
    parts = {
        **memory.weights,
        "state of slots": sum(memory.slots.values()),
        "blocks of the cache": sum(blocks.values()),
        "temporaries (estimate)": memory.temporaries,
    }
    scale = (WIDTH - 2 * _MARGIN) / max(memory.needed, memory.usable)
    lines, left = [], float(_MARGIN)
    for number, (part, size) in enumerate(parts.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        width = size * scale
        lines.append(
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}">'
            f"<title>{escape(part)}: {size / 1e9:.2f} GB</title></rect>"
        )
        left += width
        x = _MARGIN + number % 4 * (WIDTH - 2 * _MARGIN) // 4
        y = top + _BAR + 20 + number // 4 * _LINE
        lines.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{colour}"/>')
        lines.append(_text(x + 16, y, f"{part}: {size / 1e9:.2f} GB"))
    limit = _MARGIN + memory.usable * scale
    lines.append(
        f'<line x1="{limit:.1f}" x2="{limit:.1f}" y1="{top - 5}" y2="{top + _BAR + 5}" '
        'stroke="black" stroke-width="2"/>'
    )
    bottom = _BAR + 20 + -(-len(parts) // 4) * _LINE
    summary = plan.problem or (
        f"{memory.needed / 1e9:.1f} GB of the {memory.usable / 1e9:.1f} GB that may be used (black "
        f"line); {memory.tokens:,} tokens would fit"
    )
    for sentence in textwrap.wrap(summary, width=150):
        lines.append(_text(_MARGIN, top + bottom, sentence))
        bottom += _LINE
    return lines, bottom


def _text(x: float, y: float, text: str, size: int = 12) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}">{escape(text)}</text>'
