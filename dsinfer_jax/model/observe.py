"""Looking at, and replacing, intermediate values of the forward pass.

`forward` calls `observe(name, layer, value)` at named points and goes on with what it returns. The
default returns the value itself and costs nothing. A `Recorder` keeps values and can put others in
their place: that is how choices of experts and keys are exported from one run and imported into
another, and how layers are compared one by one. Observed programs unroll their layers, because a
scanned layer has no number at trace time.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import jax

Array = jax.Array
Observe = Callable[[str, int, Array], Array]
Key = tuple[str, int]

DECISIONS = ("router_ids", "index_ids", "cand_blocks")


@dataclass
class Recorder:
    """Records computed values by (name, layer), then replaces those named in `replacements`.

    Create one inside the traced function and return `recorded` from it: its values belong to that
    trace.

    Attributes:
        names: which values to keep; what is kept is the value before its replacement.
        replacements: values to go on with instead, in the shape the model computes.
    """

    names: Collection[str] = ()
    replacements: Mapping[Key, Array] = field(default_factory=dict)
    recorded: dict[Key, Array] = field(default_factory=dict)

    def __call__(self, name: str, layer: int, value: Array) -> Array:
        if name in self.names:
            self.recorded[name, layer] = value
        replacement = self.replacements.get((name, layer))
        return value if replacement is None else replacement.astype(value.dtype)


def unobserved(name: str, layer: int, value: Array) -> Array:
    return value
