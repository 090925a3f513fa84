"""The decode slots: what a decode step needs of each running request, as host arrays.

A slot's row is written when its request starts to decode; a step moves all rows on at once, so that
it costs the host the same however long the requests are. Rows move on when a step is dispatched,
before its tokens are known: where the newest token is, the device knows, and the host knows bounds.
"""

import numpy as np

from dsinfer_jax.config import CACHE_BLOCK_TOKENS
from dsinfer_jax.engine.draws import clear_draw, idle_draws, set_draw
from dsinfer_jax.engine.request import Request


class SlotTable:
    """Free slots, and the arrays of the slots that decode.

    Args:
        query_rows: most tokens that a step adds to a sequence.

    Attributes:
        earliest, latest: [slots] int32, bounds of the position of the newest token once all steps
            under way are done; -1: the slot does not decode, or its request is known to end with
            the step under way.
        last: [slots] int32, highest position that may be computed.
        draft_limits: [slots] int32, most drafts that a step verifies.
        block_tables: [slots, table width] int32.
        draws: of each slot's next token.
        requests: the request that holds each slot and has its known tokens computed.
    """

    def __init__(self, slots: int, table_width: int, query_rows: int = 1) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._taken = [False] * slots
        self._query_rows = query_rows
        self._capacity = np.zeros(slots, np.int32)  # positions that the blocks hold
        self.earliest = np.full(slots, -1, np.int32)
        self.latest = np.full(slots, -1, np.int32)
        self.last = np.zeros(slots, np.int32)
        self.draft_limits = np.zeros(slots, np.int32)
        self.block_tables = np.zeros((slots, table_width), np.int32)
        self.draws = idle_draws(slots)
        self.requests: list[Request | None] = [None] * slots

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self.requests) - len(self._free)

    @property
    def any_decoding(self) -> bool:
        return bool((self.earliest >= 0).any())

    @property
    def decoding(self) -> list[tuple[int, Request]]:
        """Slots that decode in the next step and their requests, in order of slot."""
        slots = np.flatnonzero(self.earliest >= 0).tolist()
        return [(slot, request) for slot in slots if (request := self.requests[slot])]

    @property
    def short(self) -> list[Request]:
        """Requests whose rows of the next step may have no place in their blocks."""
        highest = np.minimum(self.latest + self._query_rows - 1, self.last)
        slots = np.flatnonzero((self.earliest >= 0) & (highest >= self._capacity)).tolist()
        return [request for slot in slots if (request := self.requests[slot])]

    def take(self) -> int:
        slot = self._free.pop()
        self._taken[slot] = True
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot; it must be in use."""
        assert self._taken[slot], f"slot {slot} was given back twice"
        self._taken[slot] = False
        self._free.append(slot)
        self.requests[slot] = None
        self._stop(slot)

    def begin(self, request: Request, longest: int) -> None:
        """Let a request decode from the next step on; its next token is being drawn.

        Args:
            longest: most tokens of a sequence that are computed.
        """
        slot, length = request.slot, request.length
        assert slot is not None
        self.requests[slot] = request
        rest = min(request.params.max_tokens - len(request.token_ids) - 1, longest - length)
        if rest <= 0:
            return
        self.block_tables[slot] = 0
        self.extend(request)
        set_draw(self.draws, slot, request, length + 1)
        self.earliest[slot] = self.latest[slot] = length
        self.last[slot] = length + rest - 1
        most, wanted = self._query_rows - 1, request.params.draft_tokens
        self.draft_limits[slot] = most if wanted is None else min(wanted, most)

    def extend(self, request: Request) -> None:
        """Note that the request has more blocks."""
        blocks = request.blocks
        self.block_tables[request.slot, : len(blocks)] = blocks
        self._capacity[request.slot] = len(blocks) * CACHE_BLOCK_TOKENS

    def advance(self) -> None:
        """Move all decoding slots on by the step that was just dispatched."""
        running = self.earliest >= 0
        self.earliest[running] += 1
        self.latest[running] += self._query_rows
        self._stop_ended()

    def settle(self, slots: np.ndarray, emitted: np.ndarray) -> None:
        """Tighten the bounds of decoding slots by what a step has added to their sequences.

        Args:
            slots: [n] slots that the step ran and whose requests are the same.
            emitted: [n] tokens added.
        """
        running = self.earliest[slots] >= 0
        slots, emitted = slots[running], emitted[running]
        self.earliest[slots] += emitted - 1
        self.latest[slots] -= self._query_rows - emitted
        self._stop_ended()

    def _stop_ended(self) -> None:
        for slot in np.flatnonzero((self.earliest >= 0) & (self.earliest > self.last)).tolist():
            self._stop(slot)

    def _stop(self, slot: int) -> None:
        self.earliest[slot] = self.latest[slot] = -1
        clear_draw(self.draws, slot)
