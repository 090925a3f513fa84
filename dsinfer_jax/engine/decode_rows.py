"""Which rows a decode program runs, and whose they are; inside the program.

A slot's rows are its newest token and the drafts that are verified, one after the other. In a
uniform program every slot has the same number of rows. In a ragged one the slots share the rows: as
many drafts are verified as the host allows, those that are likeliest to stay.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

Array = jax.Array


def admitted(confidences: Array, available: Array, budget: Array) -> Array:
    """Drafts of each slot that are verified: [slots] int32 (speculative.md 9.4).

    The likeliest to survive, equals by slot and place. A draft's own later places never come
    before it, so its admission does not depend on itself or on what follows it.

    Args:
        confidences: [slots, places] float32.
        available: [slots] int32, drafts that may be verified.
        budget: how many may be verified together.
    """
    rates = _survival(confidences)
    slots, places = rates.shape
    exists = jnp.arange(places) < available[:, None]
    order = jnp.argsort(-jnp.where(exists, rates, -1.0).reshape(-1), stable=True)
    rank = (
        jnp.zeros(slots * places, jnp.int32)
        .at[order]
        .set(jnp.arange(slots * places, dtype=jnp.int32))
    )
    return jnp.sum((rank.reshape(slots, places) < budget) & exists, axis=1, dtype=jnp.int32)


def _survival(confidences: Array) -> Array:
    """`draft_lengths.survival`, with the same bits."""
    columns = [confidences[:, place] for place in range(confidences.shape[1])]
    for place in range(1, len(columns)):
        columns[place] = columns[place] * columns[place - 1]
    return jnp.stack(columns, axis=1)


@dataclass(frozen=True)
class UniformRows:
    """`width` rows for each of the slots."""

    slots: int
    width: int

    @property
    def slot(self) -> Array:
        """[rows] int32."""
        return jnp.repeat(jnp.arange(self.slots, dtype=jnp.int32), self.width)

    @property
    def place(self) -> Array:
        """[rows] int32: 0 is the newest token, j the j-th draft."""
        return jnp.tile(jnp.arange(self.width, dtype=jnp.int32), self.slots)

    @property
    def first(self) -> Array:
        """[slots] int32: the first row of each slot."""
        return jnp.arange(self.slots, dtype=jnp.int32) * self.width

    def spread(self, by_place: Array) -> Array:
        """[slots, places, ...] as [rows, ...]; places that are missing are zero."""
        missing = max(self.width - by_place.shape[1], 0)
        padding = [(0, 0), (0, missing)] + [(0, 0)] * (by_place.ndim - 2)
        whole = jnp.pad(by_place, padding)[:, : self.width]
        return whole.reshape(self.slots * self.width, *by_place.shape[2:])

    def collect(self, by_row: Array, width: int) -> Array:
        """[rows] as [slots, width]; what a slot has no row for means nothing."""
        whole = by_row.reshape(self.slots, self.width)
        return jnp.pad(whole, ((0, 0), (0, width - self.width)))


@dataclass(frozen=True)
class RaggedRows:
    """As many rows for each slot as it counts, one slot after the other, then padding."""

    slot: Array  # [rows] int32; of padding: any
    place: Array  # [rows] int32; of padding: past every slot's
    first: Array  # [slots] int32

    @classmethod
    def of(cls, counts: Array, rows: int, width: int) -> "RaggedRows":
        """Lay out `counts` [slots] int32 rows, at most `width` each and `rows` together."""
        ends = jnp.cumsum(counts)
        row = jnp.arange(rows, dtype=jnp.int32)
        slot = jnp.searchsorted(ends, row, side="right").astype(jnp.int32)
        slot = jnp.minimum(slot, len(counts) - 1)
        first = (ends - counts).astype(jnp.int32)
        return cls(slot, jnp.where(row < ends[-1], row - first[slot], width), first)

    def spread(self, by_place: Array) -> Array:
        """[slots, places, ...] as [rows, ...]; places that are missing mean nothing."""
        return by_place[self.slot, jnp.minimum(self.place, by_place.shape[1] - 1)]

    def collect(self, by_row: Array, width: int) -> Array:
        """[rows] as [slots, width]; what a slot has no row for means nothing."""
        row = self.first[:, None] + jnp.arange(width, dtype=jnp.int32)
        return by_row[jnp.minimum(row, len(by_row) - 1)]


DecodeRows = UniformRows | RaggedRows
