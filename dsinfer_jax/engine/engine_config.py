"""The sizes of an engine, checked once (engine.md 1.2, 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.engine.replay import Replay
from dsinfer_jax.mesh.expert_balance import BalanceSettings
from dsinfer_jax.mesh.layout import MeshLayout, check_layout
from dsinfer_jax.model.cache import CacheSizes
from dsinfer_jax.model.numerics import ROW_MULTIPLE
from dsinfer_jax.model.plan import Bucket, Truncation, tiles_of
from dsinfer_jax.settings import DRAFT_LENGTHS, DRAFTERS, EXCHANGES

DEFAULT_MODEL_LENGTH = 4096
ONE_DEVICE = MeshLayout(1, 1, 1)
DEFAULT_BALANCE_WINDOW = 1000  # steps; that of the published decode settings
MOST_DRAFT_TOKENS = 8  # `verification.proposal_counters` tells so many places apart
LOWEST_TEMPERATURE = 1e-5
PREFILL_TILE_ROWS = 32  # measured: 8 and 64 are slower, at 256 rows of the tiny model


@dataclass(frozen=True)
class DecodeForm:
    """The rows of a decode program.

    Attributes:
        rows: of all slots together.
        drafts: it proposes tokens for the next step, and the draft block runs if there is one.
        ragged: slots share the rows as they need them; else each has the same number.
    """

    rows: int
    drafts: bool
    ragged: bool


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of cache and programs.

    Attributes:
        max_model_len: most tokens of prompt plus output; the newest token may be one more, because
            it is not computed (engine.md 2.6).
        slots: requests that run at the same time.
        prefill_rows: prompt tokens of a prefill step, one program for each, ascending.
        drafter: one of `settings.DRAFTERS`: who proposes tokens.
        draft_tokens: how many a decode step verifies at most for a request; 0 without a drafter.
        draft_lengths: "fixed": every step verifies all drafts; "variable": those that pay.
        decode_rows: rows of the ragged decode programs, ascending; only with variable lengths.
        confidence_temperatures: divide the logits of the confidences, one for each place.
        truncation: what the consumer half computes of a prompt.
        blocks: blocks of 128 tokens in the cache.
        rollback: positions that may be written ahead of the last accepted one, plus one.
        replay: what the prefix cache reuses, and what of it is computed again.
        asynchronous: choose a step before the tokens of the last one are known.
        deterministic: equal prompts and parameters give equal bits, whatever else runs.
        layout: of the devices; slots, blocks and rows are those of each rank.
        exchange: how rows come to their experts, one of `settings.EXCHANGES`.
        redundant_experts: copies of experts on each device.
        balance: when experts are placed anew; None: never.
    """

    max_model_len: int
    slots: int
    prefill_rows: tuple[int, ...]
    drafter: str
    draft_tokens: int
    draft_lengths: str
    decode_rows: tuple[int, ...]
    confidence_temperatures: tuple[float, ...]
    truncation: Truncation
    blocks: int
    rollback: int
    replay: Replay
    asynchronous: bool
    deterministic: bool
    layout: MeshLayout
    exchange: str
    redundant_experts: int
    balance: BalanceSettings | None

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
        draft_lengths: str = "fixed",
        decode_rows: Sequence[int] | None = None,
        confidence_temperatures: Sequence[float] | None = None,
        layout: MeshLayout = ONE_DEVICE,
        exchange: str = "auto",
        redundant_experts: int = 0,
        rebalance_steps: int = 0,
        balance_window: int = DEFAULT_BALANCE_WINDOW,
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
            draft_tokens: most proposed tokens of a step, 1 to 8, for each request.
            draft_lengths: "fixed" or "variable", see length_policy.py.
            decode_rows: rows of the programs for variable lengths; None: slots x 1, 2, ... up to
                slots x draft_tokens.
            confidence_temperatures: one for all places or one for each; None: 1.
            layout: of the devices; slots, blocks and rows are those of each rank.
            exchange: "ragged", "slots" or "gather", see mesh/exchange.py; "auto": what suits the
                devices.
            redundant_experts: copies of experts on each device, beside the one that every expert
                needs.
            rebalance_steps: place the experts anew every so many steps; 0: never.
            balance_window: steps whose loads decide; at most `rebalance_steps`.

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
        _check_drafts(drafter, draft_tokens, draft_lengths)
        if exchange not in EXCHANGES:
            raise ValueError(f"exchange is {exchange!r}; it must be one of {', '.join(EXCHANGES)}")
        _check_mesh(layout, config, prefill_rows, slots, draft_lengths)
        balance = _balance(layout, redundant_experts, rebalance_steps, balance_window)
        rollback = max(CacheSizes.rollback, draft_tokens + 1 if drafter != "off" else 0)
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
            draft_lengths=draft_lengths,
            decode_rows=_decode_rows(decode_rows, slots, draft_tokens),
            confidence_temperatures=_temperatures(confidence_temperatures, draft_tokens),
            truncation=truncation,
            blocks=blocks,
            rollback=rollback,
            replay=Replay.of(prefix_cache, truncation, config),
            asynchronous=asynchronous,
            deterministic=deterministic,
            layout=layout,
            exchange=exchange,
            redundant_experts=redundant_experts,
            balance=balance,
        )

    @property
    def ranks(self) -> int:
        """Ranks with slots, blocks and requests of their own."""
        return self.layout.data_parallel

    @property
    def whole_cache_sizes(self) -> CacheSizes:
        """Of all ranks together."""
        return CacheSizes(
            slots=self.slots * self.ranks, blocks=self.blocks * self.ranks, rollback=self.rollback
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
            unit = PREFILL_TILE_ROWS * self.layout.context  # whole tiles for every device
            consumer_rows = min(rows, tiles_of(kept * PREFILL_TILE_ROWS, unit) * unit)
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
    def decode_forms(self) -> tuple[DecodeForm, ...]:
        """The decode programs; the last one has room for all drafts of all slots."""
        most = DecodeForm(self.slots * self.query_rows, bool(self.draft_tokens), ragged=False)
        if self.draft_lengths == "fixed":
            return (most,)
        ragged = [DecodeForm(rows, drafts=True, ragged=True) for rows in self.decode_rows]
        return (DecodeForm(self.slots, drafts=False, ragged=False), *ragged, most)

    def decode_bucket(self, form: DecodeForm) -> Bucket:
        """Shapes of a decode program: one tile for each slot, or for each row if it is ragged."""
        return Bucket(
            rows=form.rows,
            sequences=self.slots,
            table_width=self.table_width,
            outputs=form.rows,
            tile_rows=1 if form.ragged else form.rows // self.slots,
        )


def _check_drafts(drafter: str, draft_tokens: int, draft_lengths: str) -> None:
    if drafter not in DRAFTERS:
        raise ValueError(f"drafter is {drafter!r}; it must be one of {', '.join(DRAFTERS)}")
    if not 1 <= draft_tokens <= MOST_DRAFT_TOKENS:
        raise ValueError(
            f"draft_tokens is {draft_tokens}; it must be from 1 to {MOST_DRAFT_TOKENS}"
        )
    if draft_lengths not in DRAFT_LENGTHS:
        raise ValueError(
            f"draft_lengths is {draft_lengths!r}; it must be one of {', '.join(DRAFT_LENGTHS)}"
        )
    if draft_lengths == "variable" and drafter == "off":
        raise ValueError(
            "draft_lengths is 'variable', but drafter is 'off'; name a drafter or use 'fixed'"
        )


def _check_mesh(
    layout: MeshLayout,
    config: ModelConfig,
    prefill_rows: Sequence[int],
    slots: int,
    draft_lengths: str,
) -> None:
    check_layout(layout, config, "prefill")
    if layout.devices > 1 and draft_lengths == "variable":
        raise ValueError(
            "draft_lengths is 'variable', which one device has so far; use 'fixed' on a mesh"
        )
    for name, rows, tile in [
        *(("prefill_rows", rows, PREFILL_TILE_ROWS) for rows in prefill_rows),
        ("slots", slots, 1),
    ]:
        if rows % (tile * layout.context):
            raise ValueError(
                f"{name} has {rows}; with {layout.context} devices along context it must be a "
                f"multiple of {tile * layout.context}"
            )


def _balance(
    layout: MeshLayout, redundant: int, interval: int, window: int
) -> BalanceSettings | None:
    if layout.expert_parallel == 1 and (redundant or interval):
        name, value = (
            ("redundant_experts", redundant) if redundant else ("rebalance_steps", interval)
        )
        raise ValueError(
            f"{name} is {value}, but one device has all experts; share them with ep above 1"
        )
    if not interval:
        return None
    return BalanceSettings(redundant, min(window, interval), interval)


def _decode_rows(given: Sequence[int] | None, slots: int, draft_tokens: int) -> tuple[int, ...]:
    if given is None:
        return tuple(slots * each for each in range(1, draft_tokens + 1))
    most = slots * (draft_tokens + 1)
    for rows in given:
        if rows % ROW_MULTIPLE or not 0 < rows < most:
            raise ValueError(
                f"decode_rows has {rows}; each must be a multiple of {ROW_MULTIPLE} from "
                f"{ROW_MULTIPLE} to below {most}, which is slots x (draft_tokens + 1)"
            )
    return tuple(sorted(set(given)))


def _temperatures(given: Sequence[float] | None, draft_tokens: int) -> tuple[float, ...]:
    if given is None:
        given = (1.0,)
    if len(given) not in (1, draft_tokens) or not all(0 < one < inf for one in given):
        raise ValueError(
            f"confidence_temperatures is {tuple(given)}; it must be one finite number above 0, or "
            f"one for each of the {draft_tokens} places"
        )
    every = tuple(given) * draft_tokens if len(given) == 1 else tuple(given)
    return tuple(max(one, LOWEST_TEMPERATURE) for one in every)
