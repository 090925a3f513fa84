"""What one step of a phase brings to every device: rows, sequences, context.

Shapes come from the engine's own buckets, so that the planned programs are those that would be
compiled. On a mesh every data-parallel rank is such an engine, and all run the same bucket.
"""

from dataclasses import dataclass

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.engine_config import PREFILL_TILE_ROWS, EngineConfig
from dsinfer_jax.mesh.expert_placement import PlaceSizes
from dsinfer_jax.mesh.layout import LayoutError, MeshLayout
from dsinfer_jax.model.numerics import ROW_MULTIPLE


@dataclass(frozen=True)
class Wishes:
    """What is asked for.

    Attributes:
        context: tokens of a request, prompt and output.
        requests: requests that decode at the same time, over all devices.
        prefill_rows: prompt tokens of a prefill step of one data-parallel rank.
        drafts: tokens that the draft block proposes for a decode step; 0 without.
        keep: prompt tokens that the consumer half computes; 0: all.
        redundant: copies of experts on each device beyond one of each; by phase.
        exchange: how rows travel to their experts, one of `collectives.FORMS`.
        memory_share: part of the memory that may be used.
    """

    context: int
    requests: int
    prefill_rows: int
    drafts: int
    keep: int
    redundant: dict[str, int]
    exchange: str
    memory_share: float


@dataclass(frozen=True)
class Load:
    """One step, per device unless a name says rank (data-parallel rank).

    Attributes:
        phase, layout: what it is a step of.
        sequences: of a rank's step.
        table_width: blocks of the longest sequence, as programs see them.
        slots: sequences that a rank can hold.
        rollback: positions that caches can go back, plus one.
        blocks: blocks of 128 tokens that a rank needs for what is asked.
        rows, consumer_rows: rows of the producer and the consumer half.
        compacts: only kept rows enter the consumer half.
        outputs: rows with logits.
        draft_rows: rows of the draft block.
        redundant: copies of experts.
        keys: tokens before a row, on average.
    """

    phase: str
    layout: MeshLayout
    sequences: int
    table_width: int
    slots: int
    rollback: int
    blocks: int
    rows: int
    consumer_rows: int
    compacts: bool
    outputs: int
    draft_rows: int
    redundant: int
    keys: int

    def places(self, experts: int) -> PlaceSizes:
        """Places of a layer with so many experts; a single rank needs no copies."""
        ranks = self.layout.expert_parallel
        return PlaceSizes.of(experts, self.redundant * ranks if ranks > 1 else 0, ranks)


def load_of(config: ModelConfig, layout: MeshLayout, phase: str, wishes: Wishes) -> Load:
    """The step of a phase.

    Raises:
        LayoutError: rows do not divide by the layout.
        ValueError: a wish is out of range; the sentence of `EngineConfig`.
    """
    ranks = layout.data_parallel
    context_ranks = layout.context_parallel
    unit = PREFILL_TILE_ROWS * context_ranks
    if phase == "prefill" and wishes.prefill_rows % unit:
        raise LayoutError(
            f"prefill rows are {wishes.prefill_rows}, which cp {context_ranks} does not cut into "
            f"whole tiles of {PREFILL_TILE_ROWS}; use {-(-wishes.prefill_rows // unit) * unit}"
        )
    drafts = wishes.drafts if config.draft else 0
    per_rank = -(-wishes.requests // ranks)
    slots = ROW_MULTIPLE if phase == "prefill" else per_rank + -per_rank % ROW_MULTIPLE
    engine = EngineConfig.of(
        config,
        max_model_len=wishes.context,
        slots=slots,
        prefill_rows=(wishes.prefill_rows,),
        keep_tokens=wishes.keep,
        drafter="dspark" if drafts else "off",
        draft_tokens=drafts or 1,
    )
    blocks_each = engine.blocks // slots
    if phase == "decode":
        rows = slots * engine.query_rows
        return Load(
            phase=phase, layout=layout, sequences=slots, table_width=engine.table_width,
            slots=slots, rollback=engine.rollback, blocks=blocks_each * per_rank, rows=rows,
            consumer_rows=rows, compacts=False, outputs=rows, draft_rows=slots * drafts,
            redundant=wishes.redundant[phase], keys=wishes.context,
        )  # fmt: skip
    bucket = engine.prefill_bucket(wishes.prefill_rows)
    kept_rows = bucket.consumer_rows or bucket.rows
    kept_tiles = -(-kept_rows // unit)  # of each device
    return Load(
        phase=phase, layout=layout, sequences=bucket.sequences, table_width=engine.table_width,
        slots=slots, rollback=engine.rollback, blocks=blocks_each,
        rows=bucket.rows // context_ranks, consumer_rows=kept_tiles * PREFILL_TILE_ROWS,
        compacts=bucket.consumer_rows is not None,
        outputs=bucket.outputs, draft_rows=0, redundant=wishes.redundant[phase],
        keys=wishes.context // 2,
    )  # fmt: skip
