"""Who runs in the next step: queues, slots, blocks.

Requests wait in order of priority and arrival. The first is admitted when a slot is free and the
blocks that its known tokens need, after what the prefix cache has of them. Then its tokens are
computed in slices, several requests in one step, and it decodes, taking one block at a time.

When a decoding request finds no block, another gives up its place and waits again: of the lowest
priority, of those the one with the longest output, of those the latest. It starts again from what
the prefix cache still has of it. One sequence always fits the pool, so somebody always advances;
admission leaves a reserve, so that a request does not come back only to be thrown out.

The scheduler knows no device and no program. Steps run in the order in which it chooses them, which
is why blocks and slots can go to a new owner at once while a step that uses them is under way.
"""

import heapq
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsinfer_jax.config import CACHE_BLOCK_TOKENS
from dsinfer_jax.engine.engine_config import PREFILL_TILE_ROWS, EngineConfig
from dsinfer_jax.engine.prefix_cache import PrefixCache
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.slots import SlotTable
from dsinfer_jax.model.plan import Bucket, tiles_of

_RESERVE = 10  # one block in so many stays free when a request is admitted beside others


@dataclass(frozen=True)
class PromptSlice:
    """The next `count` known tokens of a request."""

    request: Request
    count: int

    @property
    def last(self) -> bool:
        return self.count == self.request.rest


@dataclass(frozen=True)
class PrefillStep:
    """Slices of prompts and the row bucket that holds them."""

    rows: int
    slices: Sequence[PromptSlice]


@dataclass(frozen=True)
class DecodeStep:
    """One token or more for each of these slots and their requests."""

    rows: Sequence[tuple[int, Request]]


class Scheduler:
    """Chooses steps, and owns slots and blocks.

    Args:
        salt: of the prefix cache: what its content depends on beside tokens.

    Attributes:
        slots, prefix: what the running requests hold.
        preemptions: since construction.
    """

    def __init__(self, sizes: EngineConfig, salt: str = "") -> None:
        self._sizes = sizes
        self.prefix = PrefixCache(sizes.blocks, sizes.replay, salt)
        self._pool = self.prefix.pool
        self.slots = SlotTable(sizes.slots, sizes.table_width, sizes.query_rows)
        self.preemptions = 0
        self._arrivals = 0
        self._live: dict[Request, None] = {}  # added, not released
        self._waiting: list[tuple[int, int, Request]] = []  # heap; released ones are skipped
        self._prompting: list[Request] = []  # admitted, tokens not all computed, in order
        self._deadlines: list[tuple[float, int, Request]] = []  # heap

    @property
    def unfinished(self) -> bool:
        return bool(self._live)

    @property
    def waiting(self) -> int:
        """Requests without a place."""
        return len(self._live) - self.slots.used

    @property
    def running(self) -> int:
        """Requests with a place."""
        return self.slots.used

    @property
    def free_blocks(self) -> int:
        return self._pool.free

    @property
    def must_preempt(self) -> bool:
        """Whether the next decode step cannot have all blocks it needs."""
        return len(self.slots.short) > self._pool.free

    def add(self, request: Request) -> None:
        """Queue a request whose prompt fits the engine."""
        self._arrivals += 1
        request.arrival = self._arrivals
        self._live[request] = None
        heapq.heappush(self._waiting, (*_order(request), request))
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.arrival, request))

    def expired(self, now: float) -> list[Request]:
        """Live requests whose deadline is before `now`; each is named once."""
        late = []
        while self._deadlines and self._deadlines[0][0] < now:
            request = heapq.heappop(self._deadlines)[2]
            if request in self._live:
                late.append(request)
        return late

    def next_prefill(self) -> PrefillStep | None:
        """Slices of prompts in order, as many as fit a step; None without any."""
        slices = self._choose_slices()
        return PrefillStep(self._smallest_bucket(slices), slices) if slices else None

    def next_decode(self) -> list[tuple[int, Request]]:
        """Slots that decode and their requests; some may have lost their places for others."""
        self._grow()
        return self.slots.decoding

    def computed(self, part: PromptSlice) -> None:
        """Move on by a slice whose step was just dispatched."""
        request, last = part.request, part.last
        request.computed += part.count
        self.prefix.store(request, request.computed)
        if last:
            self._prompting.remove(request)
            self.slots.begin(request, self._sizes.max_model_len)

    def release(self, request: Request) -> None:
        """Take a request out, wherever it is, and free what it holds."""
        if request not in self._live:
            return
        del self._live[request]
        if request.slot is not None:
            self._vacate(request)

    def _vacate(self, request: Request) -> None:
        assert request.slot is not None
        if request in self._prompting:
            self._prompting.remove(request)
        self.slots.give_back(request.slot)
        self._pool.give_back(request.blocks)
        request.slot, request.blocks = None, []

    def _preempt(self, request: Request) -> None:
        self._vacate(request)
        request.preemptions += 1
        self.preemptions += 1
        heapq.heappush(self._waiting, (*_order(request), request))

    def _grow(self) -> None:
        """Give every decoding request the block of its next tokens, the shortest output first."""
        short = self.slots.short
        short.sort(key=lambda request: (len(request.token_ids), *_order(request)))
        for request in short:
            while request.slot is not None:
                taken = self._pool.take(1)
                if taken is not None:
                    request.blocks += taken
                    self.slots.extend(request)
                    break
                self._preempt(self._victim())

    def _victim(self) -> Request:
        holders = (request for request in self._live if request.slot is not None)
        return max(holders, key=lambda one: (one.priority, len(one.token_ids), one.arrival))

    def _admit(self) -> Request | None:
        """The first that waits, in its place; None if there is none or no room for it."""
        while self._waiting and self._waiting[0][2] not in self._live:
            heapq.heappop(self._waiting)
        if not self._waiting or not self.slots.free:
            return None
        request = self._waiting[0][2]
        hit = self.prefix.match(request)
        fresh = tiles_of(request.length, CACHE_BLOCK_TOKENS) - len(hit.blocks)
        revived = sum(not self._pool.owners(block) for block in hit.blocks)
        reserve = self._sizes.blocks // _RESERVE if self.slots.used else 0
        if fresh + revived + reserve > self._pool.free:
            return None
        heapq.heappop(self._waiting)
        self._pool.share(hit.blocks)
        taken = self._pool.take(fresh)
        assert taken is not None
        request.slot, request.blocks = self.slots.take(), [*hit.blocks, *taken]
        request.target = request.length
        request.computed = request.window_start = request.cached_tokens = hit.start
        request.stored_tokens, request.stored_blocks = hit.tokens, len(hit.blocks)
        request.why_miss = hit.miss
        insort(self._prompting, request, key=_order)
        return request

    def _prompts(self) -> Iterator[Request]:
        """Requests with tokens to compute; new ones are admitted when their turn comes.

        So late, because then the prefix cache knows the slices of those before them.
        """
        yield from tuple(self._prompting)
        while (request := self._admit()) is not None:
            yield request

    def _choose_slices(self) -> list[PromptSlice]:
        bucket = self._sizes.prefill_bucket(self._sizes.prefill_rows[-1])
        tiles, kept_tiles = _tiles(bucket)
        slices: list[PromptSlice] = []
        for request in self._prompts():
            dropped = self._dropped_rows(request)
            room = min(tiles * PREFILL_TILE_ROWS, dropped + kept_tiles * PREFILL_TILE_ROWS)
            count = min(request.rest, room)
            if count == 0:
                break
            slices.append(PromptSlice(request, count))
            tiles -= tiles_of(count, PREFILL_TILE_ROWS)
            kept_tiles -= tiles_of(max(count - dropped, 0), PREFILL_TILE_ROWS)
            if tiles == 0 or len(slices) == bucket.sequences:
                break
        return slices

    def _dropped_rows(self, request: Request) -> int:
        """Rows that the consumer half does not compute (model.md 7.4)."""
        if self._sizes.truncation.mode != "compact":
            return 0
        bound = len(request.prompt_token_ids) - self._sizes.truncation.keep
        return max(bound - request.computed, 0)

    def _smallest_bucket(self, slices: Sequence[PromptSlice]) -> int:
        needed = sum(tiles_of(part.count, PREFILL_TILE_ROWS) for part in slices)
        kept = sum(
            tiles_of(max(part.count - self._dropped_rows(part.request), 0), PREFILL_TILE_ROWS)
            for part in slices
        )
        for rows in self._sizes.prefill_rows:
            bucket = self._sizes.prefill_bucket(rows)
            tiles, kept_tiles = _tiles(bucket)
            if needed <= tiles and kept <= kept_tiles and len(slices) <= bucket.sequences:
                return rows
        raise AssertionError("slices are chosen to fit the largest bucket")


def _order(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival


def _tiles(bucket: Bucket) -> tuple[int, int]:
    """Tiles of the producer and of the consumer half."""
    consumer_rows = bucket.consumer_rows or bucket.rows
    return bucket.rows // PREFILL_TILE_ROWS, consumer_rows // PREFILL_TILE_ROWS
