"""Where a leaf of the parameter tree lies on devices, and how it differs there from the table's.

The caller gives a rule; this room knows no mesh.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

from dsinfer_jax.model.parameter_table import TensorSpec


@dataclass(frozen=True)
class LeafPlace:
    """Where a leaf lies.

    Attributes:
        sharding: of the array on the devices.
        expert_at: [layers, places] int, the expert whose weights lie in each place; None: the
            experts in order.
        rows: of the first dimension; those behind the leaf's own are zeros. None: no such rows.
        layout: order of the dimensions in memory; None: the last one fastest.
    """

    sharding: jax.sharding.Sharding
    expert_at: np.ndarray | None = None
    rows: int | None = None
    layout: Layout | None = None

    def shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """Of the array on the devices."""
        if self.expert_at is not None:
            return (*self.expert_at.shape, *spec.shape)
        if self.rows is not None:
            return (self.rows, *spec.stacked_shape[1:])
        return spec.stacked_shape

    @property
    def format(self) -> Format | jax.sharding.Sharding:
        """Where and how the leaf lies, as jax takes it."""
        return self.sharding if self.layout is None else Format(self.layout, self.sharding)

    def laid_out(self, leaf: jax.Array) -> jax.Array:
        """A leaf that has its sharding, in its layout; the leaf is given away."""
        return leaf if self.layout is None else jax.device_put(leaf, self.format, donate=True)


PlaceRule = Callable[[TensorSpec], LeafPlace | None]  # None: whole, on jax's default device
