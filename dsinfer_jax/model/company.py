"""What the devices that run one step do for each other.

On one device nothing; `ALONE` says so. On a mesh every device runs the same forward pass over the
rows that are its own, and asks the others at five places: for the rows that they run of the same
sequences, for experts and for rows of the n-gram table that they hold. The model knows no mesh:
`dsinfer_jax.mesh` has the company of one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax

from dsinfer_jax.model.params import Quantised

Array = jax.Array
Tree = TypeVar("Tree")


class RowNames(NamedTuple):
    """What tells rows apart whatever else runs: both [rows] int32."""

    positions: Array
    token_ids: Array


# (tree of rows [n, ...], row [pairs], expert [pairs], weight [pairs]) -> outputs [pairs, hidden];
# a pair whose expert is not below the number of experts at hand has no output
Experts = Callable[[Any, Array, Array, Array], Array]


class Company(Protocol):
    """The other devices of a step, as one device sees them."""

    def own_rows(self, step_rows: Tree, consumer: bool) -> Tree:
        """Of leaves [rows of the step, ...] those that this device runs, in one half of the layers.

        They are in whole tiles; rows that fill a device's share up are zero.
        """

    def step_rows(self, own: Tree, consumer: bool) -> Tree:
        """Leaves [own rows, ...] of all who run rows of the same step, in the step's order."""

    def rows_at(self, own: Tree, rows: Array) -> Tree:
        """Leaves [n, ...]: some rows of the step, of the half that `own` is of, wherever they are
        run."""

    def routed(
        self,
        rows: Any,
        chosen: Array,
        weights: Array,
        names: RowNames,
        layer: Array | int,
        of_draft: bool,
        experts: Experts,
    ) -> Array:
        """Outputs [rows * choices, hidden] of the experts that rows have chosen.

        Args:
            rows: tree of leaves [rows, ...], what an expert reads.
            chosen: [rows, choices] int32; -1: none.
            weights: [rows, choices] float32.
            names: by which a row takes one of an expert's copies.
            layer: number of the layer within its experts, static or traced.
            of_draft: the experts of the draft block, not of the backbone.
            experts: those that this device holds.
        """

    def table_rows(self, table: Quantised, rows: Array) -> Quantised:
        """Rows [n, columns] of a table of the n-gram memory: leaves [n, columns, ...]."""


class Alone:
    """One device runs all rows and holds everything."""

    def own_rows(self, step_rows: Tree, consumer: bool) -> Tree:
        return step_rows

    def step_rows(self, own: Tree, consumer: bool) -> Tree:
        return own

    def rows_at(self, own: Tree, rows: Array) -> Tree:
        return jax.tree.map(lambda leaf: leaf[rows], own)

    def routed(
        self,
        rows: Any,
        chosen: Array,
        weights: Array,
        names: RowNames,
        layer: Array | int,
        of_draft: bool,
        experts: Experts,
    ) -> Array:
        return experts(rows, pair_rows(chosen), chosen.reshape(-1), weights.reshape(-1))

    def table_rows(self, table: Quantised, rows: Array) -> Quantised:
        return jax.tree.map(lambda leaf: leaf[rows], table)


ALONE = Alone()


def pair_rows(chosen: Array) -> Array:
    """The row of each pair (row, choice): [rows * choices] int32."""
    rows, choices = chosen.shape
    return jax.lax.broadcasted_iota("int32", (rows, choices), 0).reshape(-1)
