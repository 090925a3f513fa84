"""The pool of cache blocks: a free list. It knows numbers, neither tokens nor devices."""


class BlockPool:
    """Blocks `0 .. count - 1`, each owned by at most one request."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))  # low numbers first
        self._owned = [False] * count

    @property
    def free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """So many blocks, or None if there are fewer."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._owned[block] = True
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks; each must be owned."""
        for block in blocks:
            assert self._owned[block], f"block {block} was given back twice"
            self._owned[block] = False
            self._free.append(block)
