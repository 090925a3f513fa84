"""The decode slots: what a decode step needs of each running request, as host arrays.

A slot's row is written when its request starts to decode and advanced by one token a step, so that
a step costs the host the same however long the requests are.
"""

import numpy as np

from dsinfer_jax.engine.draws import clear_draw, idle_draws, set_draw
from dsinfer_jax.engine.request import Request


class SlotTable:
    """Free slots, and the arrays of the slots that decode.

    Attributes:
        token_ids: [slots, 1] int32, the newest token, not yet computed.
        start: [slots] int32, its position; -1: the slot does not decode.
        block_tables: [slots, table width] int32.
        draws: of each slot's next token.
        requests: the request that decodes in each slot.
    """

    def __init__(self, slots: int, table_width: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self.token_ids = np.zeros((slots, 1), np.int32)
        self.start = np.full(slots, -1, np.int32)
        self.block_tables = np.zeros((slots, table_width), np.int32)
        self.draws = idle_draws(slots)
        self.requests: list[Request | None] = [None] * slots

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def decoding(self) -> list[tuple[int, Request]]:
        """Slots that decode and their requests, in order of slot."""
        return [(slot, request) for slot, request in enumerate(self.requests) if request]

    def take(self) -> int:
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Free a slot; it must be in use."""
        assert slot not in self._free, f"slot {slot} was given back twice"
        self._free.append(slot)
        self.requests[slot] = None
        self.start[slot] = -1
        clear_draw(self.draws, slot)

    def begin(self, request: Request) -> None:
        """Let a request whose prompt is done decode from the next step on."""
        slot = request.slot
        assert slot is not None
        self.requests[slot] = request
        self.block_tables[slot] = 0
        self.block_tables[slot, : len(request.blocks)] = request.blocks
        set_draw(self.draws, slot, request, request.length)
        self._place(slot, request)

    def advance(self, request: Request) -> None:
        """Move to the request's newest token."""
        slot = request.slot
        assert slot is not None
        self.draws.positions[slot] = request.length
        self._place(slot, request)

    def _place(self, slot: int, request: Request) -> None:
        self.token_ids[slot, 0] = request.token_ids[-1]
        self.start[slot] = request.length - 1
