"""Who runs in the next step: a queue, free slots and free blocks.

A request waits until a slot and all the blocks it may ever need are free; then its prompt is
computed in slices, then it decodes until it ends. Prompts come first, in order of arrival, several
in one step; otherwise all decode together. Nobody is preempted. It knows no device and no program.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dsinfer_jax.config import CACHE_BLOCK_TOKENS
from dsinfer_jax.engine.blocks import BlockPool
from dsinfer_jax.engine.engine_config import PREFILL_TILE_ROWS, EngineConfig
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.slots import SlotTable
from dsinfer_jax.model.plan import tiles_of


@dataclass(frozen=True)
class PromptSlice:
    """The next `count` tokens of a prompt."""

    request: Request
    count: int

    @property
    def last(self) -> bool:
        return self.count == self.request.prompt_rest


@dataclass(frozen=True)
class PrefillStep:
    """Slices of prompts and the row bucket that holds them."""

    rows: int
    slices: Sequence[PromptSlice]


class Scheduler:
    """Chooses steps, and owns slots and blocks."""

    def __init__(self, sizes: EngineConfig) -> None:
        self._sizes = sizes
        self._blocks = BlockPool(sizes.blocks)
        self.slots = SlotTable(sizes.slots, sizes.table_width)
        self._waiting: deque[Request] = deque()
        self._prompting: list[Request] = []  # admitted, prompt not done, in order of arrival

    @property
    def unfinished(self) -> bool:
        return bool(self._waiting or self._prompting or self.slots.decoding)

    @property
    def free_blocks(self) -> int:
        return self._blocks.free

    def add(self, request: Request) -> None:
        """Queue a request whose prompt fits the engine."""
        self._waiting.append(request)

    def next_prefill(self) -> PrefillStep | None:
        """Admit what fits and choose prompt slices; None when no prompt waits for computation."""
        self._admit()
        slices = self._choose_slices()
        if not slices:
            return None
        needed = sum(tiles_of(part.count, PREFILL_TILE_ROWS) for part in slices)
        for rows in self._sizes.prefill_rows:
            if self._fits(rows, needed, slices):
                return PrefillStep(rows, slices)
        raise AssertionError("slices are chosen to fit the largest bucket")

    def computed(self, part: PromptSlice) -> None:
        """Note that a slice is in the cache."""
        part.request.computed += part.count
        if part.request.prompt_rest == 0:
            self._prompting.remove(part.request)

    def release(self, request: Request) -> None:
        """Take a request out, wherever it is, and free what it holds."""
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._prompting:
            self._prompting.remove(request)
        if request.slot is not None:
            self.slots.give_back(request.slot)
            self._blocks.give_back(request.blocks)
            request.slot, request.blocks = None, []

    def _admit(self) -> None:
        while self._waiting and self.slots.free:
            request = self._waiting[0]
            blocks = self._blocks.take(self._blocks_needed(request))
            if blocks is None:
                return
            self._waiting.popleft()
            request.slot, request.blocks = self.slots.take(), blocks
            self._prompting.append(request)

    def _blocks_needed(self, request: Request) -> int:
        longest = len(request.prompt_token_ids) + request.params.max_tokens
        return tiles_of(min(longest, self._sizes.max_model_len), CACHE_BLOCK_TOKENS)

    def _choose_slices(self) -> list[PromptSlice]:
        bucket = self._sizes.prefill_bucket(self._sizes.prefill_rows[-1])
        tiles = bucket.rows // PREFILL_TILE_ROWS
        kept_tiles = (bucket.consumer_rows or bucket.rows) // PREFILL_TILE_ROWS
        slices: list[PromptSlice] = []
        for request in self._prompting[: bucket.sequences]:
            dropped = self._dropped_rows(request)
            room = min(tiles * PREFILL_TILE_ROWS, dropped + kept_tiles * PREFILL_TILE_ROWS)
            count = min(request.prompt_rest, room)
            if count == 0:
                break
            slices.append(PromptSlice(request, count))
            tiles -= tiles_of(count, PREFILL_TILE_ROWS)
            kept_tiles -= tiles_of(max(count - dropped, 0), PREFILL_TILE_ROWS)
        return slices

    def _dropped_rows(self, request: Request) -> int:
        """Rows of the prompt's rest that the consumer half does not compute (model.md 7.4)."""
        if self._sizes.truncation.mode != "compact":
            return 0
        bound = len(request.prompt_token_ids) - self._sizes.truncation.keep
        return max(bound - request.computed, 0)

    def _fits(self, rows: int, tiles: int, slices: Sequence[PromptSlice]) -> bool:
        bucket = self._sizes.prefill_bucket(rows)
        kept_tiles = sum(
            tiles_of(max(part.count - self._dropped_rows(part.request), 0), PREFILL_TILE_ROWS)
            for part in slices
        )
        consumer_rows = bucket.consumer_rows or bucket.rows
        return (
            tiles * PREFILL_TILE_ROWS <= rows
            and kept_tiles * PREFILL_TILE_ROWS <= consumer_rows
            and len(slices) <= bucket.sequences
        )
