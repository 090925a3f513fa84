"""The pool of cache blocks: who owns which, and which still hold something worth finding.

A block is *owned* by one or more requests, *kept* (nobody owns it, its content may be found again)
or *empty*. Kept blocks count as free: they are evicted, the longest unused first, when no empty
block is left. The pool knows numbers, neither tokens nor devices.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable


class BlockPool:
    """Blocks `0 .. count - 1` with reference counts (engine.md 3.1).

    Args:
        count: number of blocks.
        evicted: called with each kept block whose content is lost.
    """

    def __init__(self, count: int, evicted: Callable[[int], None] = lambda block: None) -> None:
        self.count = count
        self._empty = deque(range(count))
        self._kept: OrderedDict[int, None] = OrderedDict()  # the longest unused first
        self._owners = [0] * count
        self._worth_keeping = [False] * count
        self._evicted = evicted

    @property
    def free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._empty) + len(self._kept)

    def owners(self, block: int) -> int:
        """How many requests own a block."""
        return self._owners[block]

    def take(self, count: int) -> list[int] | None:
        """So many blocks of unknown content, or None if there are fewer."""
        if count > self.free:
            return None
        taken = [self._take_one() for _ in range(count)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Own blocks whose content is wanted, together with whoever owns them already."""
        for block in blocks:
            if not self._owners[block]:
                del self._kept[block]
            self._owners[block] += 1

    def keep(self, block: int) -> None:
        """Mark an owned block: once nobody owns it, its content is kept as long as possible."""
        assert self._owners[block], f"block {block} is kept but nobody owns it"
        self._worth_keeping[block] = True

    def forget(self, block: int) -> None:
        """The content of a block is worth nothing any more."""
        self._worth_keeping[block] = False
        if block in self._kept:
            del self._kept[block]
            self._empty.append(block)

    def give_back(self, blocks: list[int]) -> None:
        """Stop owning blocks. The end of a prefix is evicted before its beginning."""
        for block in reversed(blocks):
            assert self._owners[block], f"block {block} was given back twice"
            self._owners[block] -= 1
            if self._owners[block]:
                continue
            if self._worth_keeping[block]:
                self._kept[block] = None
            else:
                self._empty.append(block)

    def _take_one(self) -> int:
        if self._empty:
            return self._empty.popleft()
        block, _ = self._kept.popitem(last=False)
        self._worth_keeping[block] = False
        self._evicted(block)
        return block
