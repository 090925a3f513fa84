"""The schedulers of all ranks as one: every rank runs the same kind of step.

A rank has slots, blocks and a prefix cache of its own; a request stays with the rank that had the
fewest when it came. A step is a prefill step of one size for all, or a decode step for all; ranks
without work in it idle. Slots are counted over all ranks, see `devices.py`.
"""

from collections.abc import Sequence

import jax
import numpy as np

from dsinfer_jax.engine.draws import Draws
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.scheduler import DecodeStep, PrefillStep, Scheduler
from dsinfer_jax.engine.slots import SlotTable


class Ranks:
    """Chooses steps for all ranks.

    Args:
        salt: of the prefix caches.
    """

    def __init__(self, sizes: EngineConfig, salt: str = "") -> None:
        self._sizes = sizes
        self.each = [Scheduler(sizes, salt) for _ in range(sizes.ranks)]
        self._rank: dict[Request, int] = {}  # added, not released
        self._prefilled_last = False

    @property
    def unfinished(self) -> bool:
        return bool(self._rank)

    @property
    def waiting(self) -> int:
        """Requests without a place."""
        return sum(one.waiting for one in self.each)

    @property
    def running(self) -> int:
        """Requests with a place."""
        return sum(one.running for one in self.each)

    @property
    def free_blocks(self) -> int:
        return sum(one.free_blocks for one in self.each)

    @property
    def stored_blocks(self) -> int:
        """Blocks that the prefix caches can find."""
        return sum(one.prefix.stored for one in self.each)

    @property
    def preemptions(self) -> int:
        """Since construction."""
        return sum(one.preemptions for one in self.each)

    @property
    def must_preempt(self) -> bool:
        """Whether a rank's next decode step cannot have all blocks it needs."""
        return any(one.must_preempt for one in self.each)

    def add(self, request: Request) -> None:
        """Queue a request whose prompt fits the engine."""
        loads = [one.waiting + one.running for one in self.each]
        rank = loads.index(min(loads))
        self._rank[request] = rank
        self.each[rank].add(request)

    def expired(self, now: float) -> list[Request]:
        """Live requests whose deadline is before `now`; each is named once."""
        return [request for one in self.each for request in one.expired(now)]

    def release(self, request: Request) -> None:
        """Take a request out, wherever it is, and free what it holds."""
        rank = self._rank.pop(request, None)
        if rank is not None:
            self.each[rank].release(request)

    def next_step(self) -> PrefillStep | DecodeStep | None:
        """Choose a step; None when nobody can advance before a step under way ends.

        Prompts come first, but two prompt steps never follow each other while somebody decodes.
        """
        if not (self._prefilled_last and any(one.slots.any_decoding for one in self.each)):
            steps = [one.next_prefill() for one in self.each]
            rows = [step.rows for step in steps if step is not None]
            if rows:
                self._prefilled_last = True
                slices = [part for step in steps if step is not None for part in step.slices]
                return PrefillStep(max(rows), slices)
        self._prefilled_last = False
        pairs = [
            (rank * self._sizes.slots + slot, request)
            for rank, one in enumerate(self.each)
            for slot, request in one.next_decode()
        ]
        return DecodeStep(pairs) if pairs else None

    def dispatched(self, step: PrefillStep | DecodeStep) -> None:
        """Move on by a step that was just handed to the devices."""
        if isinstance(step, DecodeStep):
            for one in self.each:
                one.slots.advance()
            return
        for part in step.slices:
            self.each[self._rank[part.request]].computed(part)

    def settle(self, slots: np.ndarray, emitted: np.ndarray) -> None:
        """Tighten the bounds of decoding slots, see `SlotTable.settle`."""
        ranks = slots // self._sizes.slots
        for rank, one in enumerate(self.each):
            own = ranks == rank
            one.slots.settle(slots[own] % self._sizes.slots, emitted[own])

    def slot_of(self, request: Request) -> int:
        """Of a request that has a place."""
        assert request.slot is not None
        return self._rank[request] * self._sizes.slots + request.slot

    def store(self, request: Request, computed: int) -> None:
        """Let the prefix cache find what a request has computed."""
        self.each[self._rank[request]].prefix.store(request, computed)

    def forget(self, request: Request) -> None:
        """Let nobody find the blocks of a request."""
        self.each[self._rank[request]].prefix.forget(request.blocks)

    def clear_prefixes(self) -> None:
        """Forget all that is stored."""
        for one in self.each:
            one.prefix.clear()

    @property
    def slots(self) -> "AllSlots":
        """What decode steps need of the slots of all ranks."""
        return AllSlots([one.slots for one in self.each])


class AllSlots:
    """Slot tables of the ranks, one after the other; see `SlotTable` for the arrays."""

    def __init__(self, tables: Sequence[SlotTable]) -> None:
        self._tables = tables

    def _joined(self, name: str) -> np.ndarray:
        leaves = [getattr(table, name) for table in self._tables]
        return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)

    @property
    def earliest(self) -> np.ndarray:
        return self._joined("earliest")

    @property
    def last(self) -> np.ndarray:
        return self._joined("last")

    @property
    def draft_limits(self) -> np.ndarray:
        return self._joined("draft_limits")

    @property
    def block_tables(self) -> np.ndarray:
        return self._joined("block_tables")

    @property
    def draws(self) -> Draws:
        some = [table.draws for table in self._tables]
        if len(some) == 1:
            return some[0]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *some)
