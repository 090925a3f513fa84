"""The arrays that one step needs: which rows, where their keys are, what is written and returned.

A step's rows are flattened over sequences. Each sequence brings one *slice* of consecutive
positions; slices are padded to whole tiles, so that every tile of rows belongs to one sequence.
Prefill and decode differ only in shape: prefill has few sequences with many rows, decode has one
tile of q rows per slot, or tiles of one row where slots have different numbers of rows.

The producer half (layers before the first consumer layer) and the consumer half may run different
rows of the same slices (truncation, model.md 7). `Plan` therefore holds two row sets.

Host code builds prefill plans with numpy. Decode plans are built inside the program, because only
the device knows where the step before it has left each sequence. `row_index` derives, on the
device, what every layer needs from a plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.model.numerics import ROW_MULTIPLE

Array = jax.Array
PlanArray = jax.Array | np.ndarray  # numpy on the host, device arrays inside a program
TRUNCATION_MODES = ("off", "mask", "compact")


@register_dataclass
@dataclass(frozen=True)
class Rows:
    """One set of rows, in tiles of one sequence each."""

    positions: PlanArray  # [rows] int32, -1 on padding
    window_start: PlanArray  # [rows] int32: lowest position whose window key is visible
    preceding: PlanArray  # [rows] int32: rows of the same slice before this one in this set
    following: PlanArray  # [rows] int32: rows of the same slice after this one in this set
    keeps_state: PlanArray  # [rows] bool: may leave its state in the rings of its slot
    tile_sequence: PlanArray  # [tiles] int32: which of the plan's sequences the tile belongs to

    @property
    def count(self) -> int:
        return self.positions.shape[0]

    @property
    def tile_rows(self) -> int:
        return self.positions.shape[0] // self.tile_sequence.shape[0]


@register_dataclass
@dataclass(frozen=True)
class Plan:
    """One step. Shapes are the program's bucket; nothing in them depends on a request."""

    token_ids: PlanArray  # [rows] int32
    producer: Rows
    consumer: Rows
    kept: PlanArray | None  # [consumer rows] int32 into the producer rows; None: the same rows
    writes_blocks: PlanArray  # [rows] bool: this row's compressed keys are stored
    slots: PlanArray  # [sequences] int32: place of each sequence in the bounded caches
    block_tables: PlanArray  # [sequences, table width] int32
    previous_tokens: PlanArray | None  # [sequences, look-back] int32, latest first; -1: none
    output_rows: PlanArray  # [outputs] int32 into the consumer rows: rows whose logits are wanted


@register_dataclass
@dataclass(frozen=True)
class RowIndex:
    """Derived once per step from a row set, used by every layer."""

    positions: Array  # [rows] int32, -1 on padding
    sequence: Array  # [rows] int32
    slot: Array  # [rows] int32
    tile_sequence: Array  # [tiles] int32
    window_index: Array  # [rows, window] int32 into (rings of the plan's sequences, then step rows)
    window_visible: Array  # [rows, window] bool
    preceding: Array  # [rows] int32
    following: Array  # [rows] int32
    keeps_state: Array  # [rows] bool

    @property
    def tile_rows(self) -> int:
        return self.positions.shape[0] // self.tile_sequence.shape[0]

    @property
    def valid(self) -> Array:
        return self.positions >= 0

    def ring_place(self, ring: int, slots: int) -> tuple[Array, Array]:
        """(slot, place) [rows] at which a row leaves its state in rings [slots, ring, ...].

        Only the last `ring` rows of a slice write, so that no place is written twice. The slot of
        the others is out of range: the write is dropped.
        """
        writes = self.valid & self.keeps_state & (self.following < ring)
        return jnp.where(writes, self.slot, slots), jnp.maximum(self.positions, 0) % ring


def row_index(row_set: Rows, plan: Plan, window: int, ring: int) -> RowIndex:
    """Where each row of a set finds the keys of its window (itself included) in a ring."""
    rows: Any = jax.tree.map(jnp.asarray, row_set)
    sequence = jnp.repeat(rows.tile_sequence, rows.tile_rows)
    slot = plan.slots[sequence]
    distance = jnp.arange(window - 1, -1, -1, dtype=jnp.int32)  # oldest key first
    position = rows.positions[:, None] - distance
    in_step = distance <= rows.preceding[:, None]
    step_row = jnp.arange(rows.count, dtype=jnp.int32)[:, None] - distance
    first_step_row = plan.slots.shape[0] * ring
    return RowIndex(
        positions=rows.positions,
        sequence=sequence,
        slot=slot,
        tile_sequence=rows.tile_sequence,
        window_index=jnp.where(
            in_step, first_step_row + step_row, sequence[:, None] * ring + position % ring
        ),
        window_visible=(position >= jnp.maximum(rows.window_start, 0)[:, None]) & (position >= 0),
        preceding=rows.preceding,
        following=rows.following,
        keeps_state=rows.keeps_state,
    )


def block_place(plan: Plan, index: RowIndex, ratio: int, blocks: int) -> tuple[Array, Array]:
    """(block, offset) [rows] where a row stores the compressed key of the group it completes.

    The block is out of range, so that the write is dropped, for rows that complete no group or must
    not write.
    """
    position = jnp.maximum(index.positions, 0)
    block = plan.block_tables[index.sequence, position // CACHE_BLOCK_TOKENS]
    completes = index.valid & plan.writes_blocks & ((position + 1) % ratio == 0)
    return jnp.where(completes, block, blocks), position % CACHE_BLOCK_TOKENS // ratio


@dataclass(frozen=True)
class Slice:
    """Rows that one sequence brings to a step (host object).

    Attributes:
        slot: the sequence's place in the bounded caches.
        token_ids: ids of these rows.
        start: position of the first row.
        known_length: all tokens of the sequence known at this step (Dl of model.md 7.2).
        blocks: block table of the sequence, long enough for these rows.
        previous_ids: the tokens right before `start`, oldest first, as many as are known.
        valid_start: first position with valid window state in this run (vs of model.md 7.2).
        stored_length: positions below this already have their compressed keys; they are not written
            again.
        outputs: offsets into `token_ids` whose logits are wanted.
    """

    slot: int
    token_ids: Sequence[int]
    start: int
    known_length: int
    blocks: Sequence[int]
    previous_ids: Sequence[int] = ()
    valid_start: int = 0
    stored_length: int = 0
    outputs: Sequence[int] = ()

    @property
    def rows(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Truncation:
    """How consumer layers treat prompt rows before the kept suffix (model.md 7.3).

    Attributes:
        mode: "off", "mask" (all rows, shortened windows) or "compact" (kept rows only).
        keep: length of the kept suffix, KEEP of model.md 7.2.
    """

    mode: str = "off"
    keep: int = 0

    def check(self, config: ModelConfig, rollback: int) -> None:
        """Raise ValueError, in one sentence, when the mode cannot serve this configuration."""
        if self.mode not in TRUNCATION_MODES:
            raise ValueError(
                f"truncation mode is {self.mode!r}; it must be one of {', '.join(TRUNCATION_MODES)}"
            )
        if self.mode == "off":
            return
        needed = config.sliding_window + rollback
        if self.keep < needed:
            raise ValueError(
                f"keep_tokens is {self.keep}; with a window of {config.sliding_window} and a "
                f"rollback of {rollback} it must be at least {needed}"
            )


def tiles_of(count: int, tile_rows: int) -> int:
    return -(-count // tile_rows)


class _RowSet:
    """A row set under construction: numpy arrays of one bucket, filled slice by slice."""

    def __init__(self, rows: int, tile_rows: int) -> None:
        self.tile_rows = tile_rows
        self.positions = np.full(rows, -1, np.int32)
        self.window_start = np.zeros(rows, np.int32)
        self.preceding = np.zeros(rows, np.int32)
        self.following = np.zeros(rows, np.int32)
        self.keeps_state = np.zeros(rows, bool)
        self.tile_sequence = np.zeros(rows // tile_rows, np.int32)
        self.used = 0

    def add(
        self, sequence: int, positions: np.ndarray, window_start: np.ndarray, lowest: int
    ) -> int:
        """Append rows of one sequence; returns the first row. Rows below `lowest` leave no
        state."""
        count, first = len(positions), self.used
        padded = tiles_of(count, self.tile_rows) * self.tile_rows
        if first + padded > len(self.positions):
            raise ValueError(
                f"the slices need more than the bucket's {len(self.positions)} rows; "
                "use a larger bucket"
            )
        place = slice(first, first + count)
        self.positions[place] = positions
        self.window_start[place] = window_start
        self.preceding[place] = np.arange(count)
        self.following[place] = np.arange(count)[::-1]
        self.keeps_state[place] = positions >= lowest
        self.tile_sequence[first // self.tile_rows : (first + padded) // self.tile_rows] = sequence
        self.used += padded
        return first

    def rows(self) -> Rows:
        return Rows(
            positions=self.positions,
            window_start=self.window_start,
            preceding=self.preceding,
            following=self.following,
            keeps_state=self.keeps_state,
            tile_sequence=self.tile_sequence,
        )


@dataclass(frozen=True)
class Bucket:
    """Static shapes of one program.

    Attributes:
        rows: producer rows, a multiple of `tile_rows` and of 8.
        sequences: sequences of a step.
        table_width: blocks per sequence.
        outputs: rows whose logits are returned.
        tile_rows: rows per tile.
        consumer_rows: rows of the consumer half; None: the same rows as the producers (no
            compaction).
    """

    rows: int
    sequences: int
    table_width: int
    outputs: int
    tile_rows: int
    consumer_rows: int | None = None

    def __post_init__(self) -> None:
        for name, count in (
            ("rows", self.rows),
            ("consumer_rows", self.consumer_rows or self.rows),
        ):
            if count % self.tile_rows or count % ROW_MULTIPLE:
                raise ValueError(
                    f"{name} is {count}; it must be a multiple of {ROW_MULTIPLE} and of tile_rows "
                    f"{self.tile_rows}"
                )


def prefill_plan(
    slices: Sequence[Slice],
    bucket: Bucket,
    config: ModelConfig,
    truncation: Truncation = Truncation(),
) -> Plan:
    """Plan one step over slices of any sequences.

    Raises:
        ValueError: the slices do not fit the bucket.
    """
    if len(slices) > bucket.sequences:
        raise ValueError(
            f"{len(slices)} slices do not fit a bucket of {bucket.sequences} sequences"
        )
    compact = truncation.mode == "compact"
    producer = _RowSet(bucket.rows, bucket.tile_rows)
    consumer = _RowSet(bucket.consumer_rows or bucket.rows, bucket.tile_rows)
    kept = np.zeros(len(consumer.positions), np.int32)
    token_ids = np.zeros(bucket.rows, np.int32)
    writes_blocks = np.zeros(bucket.rows, bool)
    slots = np.zeros(bucket.sequences, np.int32)
    tables = np.zeros((bucket.sequences, bucket.table_width), np.int32)
    look_back = config.engram.max_ngram_size - 1 if config.engram else 0
    previous = np.full((bucket.sequences, look_back), -1, np.int32)
    output_rows: list[int] = []

    for sequence, part in enumerate(slices):
        positions = np.arange(part.start, part.start + part.rows, dtype=np.int32)
        window_start = np.maximum(positions - config.sliding_window + 1, part.valid_start)
        first = producer.add(sequence, positions, window_start, lowest=0)
        token_ids[first : first + part.rows] = part.token_ids
        writes_blocks[first : first + part.rows] = positions >= part.stored_length

        bound = 0 if truncation.mode == "off" else max(part.known_length - truncation.keep, 0)
        clip = min(max(bound - part.start, 0), part.rows) if compact else 0
        shortened = np.clip(np.maximum(window_start, bound), 0, positions + 1)
        kept_first = consumer.add(sequence, positions[clip:], shortened[clip:], lowest=bound)
        kept[kept_first : kept_first + part.rows - clip] = first + np.arange(clip, part.rows)
        for offset in part.outputs:
            if offset < clip:
                raise ValueError(
                    f"row {offset} of a slice has no logits: compact truncation drops the rows "
                    f"before {clip}"
                )
            output_rows.append(kept_first + offset - clip)

        slots[sequence] = part.slot
        tables[sequence, : len(part.blocks)] = part.blocks
        recent = list(part.previous_ids)[::-1][:look_back]
        previous[sequence, : len(recent)] = recent

    if len(output_rows) > bucket.outputs:
        raise ValueError(f"{len(output_rows)} wanted rows do not fit a bucket of {bucket.outputs}")
    return Plan(
        token_ids=token_ids,
        producer=producer.rows(),
        consumer=consumer.rows(),
        kept=kept if compact else None,
        writes_blocks=writes_blocks,
        slots=slots,
        block_tables=tables,
        previous_tokens=previous if look_back else None,
        output_rows=np.array(
            output_rows + [0] * (bucket.outputs - len(output_rows)), dtype=np.int32
        ),
    )


def decode_plan(
    token_ids: PlanArray,
    start: PlanArray,
    block_tables: PlanArray,
    config: ModelConfig,
    counts: PlanArray | None = None,
    ragged: tuple[PlanArray, PlanArray] | None = None,
) -> Plan:
    """Plan a decode step over the slots, every row wanted.

    Takes numpy arrays or arrays of a program; the plan is of the same kind.

    Args:
        token_ids: [slots, q] int32.
        start: [slots] int32, position of a slot's first row; -1: the slot idles.
        block_tables: [slots, table width] int32.
        counts: [slots] int32, rows in use of each slot (the rest is padding); None: all q.
        ragged: (slot, offset) [rows] int32 of each row, where rows of a slot follow each other from
            offset 0 on; offset q is padding. None: q rows for each slot.
    """
    xp: Any = np if isinstance(start, np.ndarray) else jnp
    slots, q = token_ids.shape
    every_slot = xp.arange(slots, dtype=np.int32)
    if ragged is None:
        tile_sequence, token_of_row = every_slot, token_ids.reshape(-1)
        sequence = xp.repeat(every_slot, q)
        offset = xp.tile(xp.arange(q, dtype=np.int32), slots)
    else:
        sequence, offset = ragged
        tile_sequence, token_of_row = sequence, token_ids[sequence, xp.minimum(offset, q - 1)]
    used = xp.full(slots, q, np.int32) if counts is None else counts
    active = (start[sequence] >= 0) & (offset < used[sequence])
    positions = xp.where(active, start[sequence] + offset, -1).astype(np.int32)
    rows = Rows(
        positions=positions,
        window_start=xp.maximum(positions - config.sliding_window + 1, 0).astype(np.int32),
        preceding=offset,
        following=(used[sequence] - 1 - offset).astype(np.int32),
        keeps_state=active,
        tile_sequence=tile_sequence,
    )
    return Plan(
        token_ids=token_of_row.astype(np.int32),
        producer=rows,
        consumer=rows,
        kept=None,
        writes_blocks=active,
        slots=every_slot,
        block_tables=block_tables.astype(np.int32),
        previous_tokens=None,
        output_rows=xp.arange(positions.shape[0], dtype=np.int32),
    )
