"""What crosses links in a compiled program, read off its text (jax-practice.md 15)."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from math import prod

OPERATIONS = ("all-gather", "all-to-all", "reduce-scatter", "all-reduce", "ragged-all-to-all")
_BYTES = {"pred": 1, "u8": 1, "s8": 1, "u16": 2, "bf16": 2, "f16": 2, "u32": 4, "s32": 4, "f32": 4}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (.*)$")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:body|to_apply|calls|branch_computations|true_computation|"
                     r"false_computation)=\{?(%?[\w.\-]+(?:, ?%?[\w.\-]+)*)")  # fmt: skip
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def collective_bytes(text: str) -> Counter[str]:
    """Bytes of the buffers of all collectives of a program on one device, by operation.

    A buffer is the larger of operand and result. What is inside a loop counts as often as the loop
    runs, once where that is not known.
    """
    own: dict[str, Counter[str]] = defaultdict(Counter)
    calls: dict[str, list[tuple[str, int]]] = defaultdict(list)
    current = entry = ""
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened:
            current = opened.group(1)
            entry = current if line.startswith("ENTRY") else entry
            continue
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        body = found.group(1)
        operation = _operation(body)
        if operation:
            own[current][operation] += _buffer(body, operation)
        trips = _TRIPS.search(body)
        for names in _CALLED.findall(body):
            for name in names.split(","):
                count = int(trips.group(1)) if trips else 1
                calls[current].append((name.strip().lstrip("%"), count))
    return _total(entry, own, calls)


def gathered_shapes(text: str) -> set[tuple[int, ...]]:
    """Shapes of what the all-gathers of a program put together, without dimensions of one."""
    found = set()
    for line in text.splitlines():
        body = _INSTRUCTION.match(line)
        if body and _operation(body.group(1)) == "all-gather":
            result = body.group(1).partition(" all-gather")[0]
            found |= {
                without_ones(map(int, sizes.split(",")))
                for _, sizes in _SHAPE.findall(result)
                if sizes
            }
    return found


def without_ones(shape: Iterable[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _operation(body: str) -> str | None:
    for name in OPERATIONS:
        if re.search(rf"\s{name}(-start)?\(", body):
            return name
    return None


def _buffer(body: str, operation: str) -> int:
    result, _, operands = body.partition(f" {operation}")
    return max(_bytes(result), _bytes(operands.partition("), ")[0]))


def _bytes(text: str) -> int:
    return sum(
        _BYTES.get(kind, 0) * prod(int(size) for size in sizes.split(",") if size)
        for kind, sizes in _SHAPE.findall(text)
    )


def _total(
    name: str, own: dict[str, Counter[str]], calls: dict[str, list[tuple[str, int]]]
) -> Counter[str]:
    total = Counter(own[name])
    for called, times in calls[name]:
        for operation, count in _total(called, own, calls).items():
            total[operation] += count * times
    return total
