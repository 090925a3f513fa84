"""The sizes of an engine, checked once (engine.md 1.2, 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.engine.replay import Replay
from dsinfer_jax.model.cache import CacheSizes
from dsinfer_jax.model.numerics import ROW_MULTIPLE
from dsinfer_jax.model.plan import Bucket, Truncation, tiles_of
from dsinfer_jax.settings import DRAFTERS

DEFAULT_MODEL_LENGTH = 4096
PREFILL_TILE_ROWS = 32  # measured: 8 and 64 are slower, at 256 rows of the tiny model


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of cache and programs.

    Attributes:
        max_model_len: most tokens of prompt plus output; the newest token may be one more, because
            it is not computed (engine.md 2.6).
        slots: requests that run at the same time.
        prefill_rows: prompt tokens of a prefill step, one program for each, ascending.
        drafter: one of `settings.DRAFTERS`: who proposes tokens.
        draft_tokens: how many a decode step verifies at most; 0 without a drafter.
        truncation: what the consumer half computes of a prompt.
        blocks: blocks of 128 tokens in the cache.
        rollback: positions that may be written ahead of the last accepted one, plus one.
        replay: what the prefix cache reuses, and what of it is computed again.
        asynchronous: choose a step before the tokens of the last one are known.
        deterministic: equal prompts and parameters give equal bits, whatever else runs.
    """

    max_model_len: int
    slots: int
    prefill_rows: tuple[int, ...]
    drafter: str
    draft_tokens: int
    truncation: Truncation
    blocks: int
    rollback: int
    replay: Replay
    asynchronous: bool
    deterministic: bool

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        *,
        max_model_len: int | None = None,
        slots: int = 8,
        prefill_rows: Sequence[int] = (256,),
        keep_tokens: int = 0,
        blocks: int | None = None,
        prefix_cache: str = "exact",
        asynchronous: bool = True,
        deterministic: bool = False,
        drafter: str = "off",
        draft_tokens: int = 5,
    ) -> "EngineConfig":
        """Check and complete the sizes for a model.

        Args:
            keep_tokens: 0 computes whole prompts; more is the suffix that the consumer half keeps.
            blocks: None: enough for the longest sequence in every slot.
            prefix_cache: "off", "exact" or "bounded", see replay.py.
            asynchronous: hand a step to the device before the tokens of the last one are read.
            deterministic: refuse what makes an answer depend on what else runs (docs/sampling.md).
            drafter: "off"; "lookup": propose what followed the same tokens earlier; "dspark": the
                model's draft block.
            draft_tokens: most proposed tokens of a step.

        Raises:
            ValueError: one sentence with name, value and what is allowed.
        """
        longest = config.max_position_embeddings
        if max_model_len is None:
            max_model_len = min(DEFAULT_MODEL_LENGTH, longest)
        if not 1 <= max_model_len <= longest:
            raise ValueError(
                f"max_model_len is {max_model_len}; it must be from 1 to {longest}, the model's "
                "max_position_embeddings"
            )
        if slots < ROW_MULTIPLE or slots % ROW_MULTIPLE:
            raise ValueError(f"slots is {slots}; it must be a positive multiple of {ROW_MULTIPLE}")
        for rows in prefill_rows:
            if rows < PREFILL_TILE_ROWS or rows % PREFILL_TILE_ROWS:
                raise ValueError(
                    f"prefill_rows has {rows}; each must be a positive multiple of "
                    f"{PREFILL_TILE_ROWS}"
                )
        if not prefill_rows:
            raise ValueError("prefill_rows is empty; name at least one row count")
        if deterministic and prefix_cache == "bounded":
            raise ValueError(
                'prefix_cache is "bounded", which approximates what it finds; with deterministic '
                'it must be "exact" or "off"'
            )
        if drafter not in DRAFTERS:
            raise ValueError(f"drafter is {drafter!r}; it must be one of {', '.join(DRAFTERS)}")
        rollback = CacheSizes.rollback
        if not 1 <= draft_tokens < rollback:
            raise ValueError(
                f"draft_tokens is {draft_tokens}; it must be from 1 to {rollback - 1}, because "
                f"caches roll back {rollback - 1} positions"
            )
        truncation = Truncation("compact", keep_tokens) if keep_tokens else Truncation()
        truncation.check(config, rollback)
        per_sequence = tiles_of(max_model_len, CACHE_BLOCK_TOKENS)
        blocks = per_sequence * slots if blocks is None else blocks
        if blocks < per_sequence:
            raise ValueError(
                f"blocks is {blocks}; one sequence of {max_model_len} tokens needs {per_sequence}"
            )
        return cls(
            max_model_len=max_model_len,
            slots=slots,
            prefill_rows=tuple(sorted(set(prefill_rows))),
            drafter=drafter,
            draft_tokens=0 if drafter == "off" else draft_tokens,
            truncation=truncation,
            blocks=blocks,
            rollback=rollback,
            replay=Replay.of(prefix_cache, truncation, config),
            asynchronous=asynchronous,
            deterministic=deterministic,
        )

    @property
    def query_rows(self) -> int:
        """Rows of a request in a decode step: its newest token and the drafts after it."""
        return 1 + self.draft_tokens

    @property
    def cache_sizes(self) -> CacheSizes:
        return CacheSizes(slots=self.slots, blocks=self.blocks, rollback=self.rollback)

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence, rounded up to a power of two."""
        needed = tiles_of(self.max_model_len, CACHE_BLOCK_TOKENS)
        return 1 << (needed - 1).bit_length()

    def prefill_bucket(self, rows: int) -> Bucket:
        """Shapes of the prefill program of so many rows.

        In compact truncation the consumer half has room for the kept suffix of one prompt with its
        padding; the scheduler brings no more.
        """
        consumer_rows = None
        if self.truncation.mode == "compact":
            kept = tiles_of(self.truncation.keep, PREFILL_TILE_ROWS) + 1
            consumer_rows = min(rows, kept * PREFILL_TILE_ROWS)
        sequences = max(min(rows // PREFILL_TILE_ROWS, self.slots), ROW_MULTIPLE)
        return Bucket(
            rows=rows,
            sequences=sequences,
            table_width=self.table_width,
            outputs=sequences,
            tile_rows=PREFILL_TILE_ROWS,
            consumer_rows=consumer_rows,
        )

    @property
    def decode_bucket(self) -> Bucket:
        """Shapes of the decode program: one tile of `query_rows` rows for each slot."""
        rows = self.slots * self.query_rows
        return Bucket(
            rows=rows,
            sequences=self.slots,
            table_width=self.table_width,
            outputs=rows,
            tile_rows=self.query_rows,
        )
