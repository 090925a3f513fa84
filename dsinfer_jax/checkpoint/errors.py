"""The one exception of this room."""

from collections.abc import Sequence

_SHOWN = 20


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written; each fault is a sentence with file or tensor."""

    def __init__(self, message: str, faults: Sequence[str] = ()) -> None:
        self.faults = tuple(faults)
        lines = [message, *(f"  {fault}" for fault in self.faults[:_SHOWN])]
        if len(self.faults) > _SHOWN:
            lines.append(f"  and {len(self.faults) - _SHOWN} more")
        super().__init__("\n".join(lines))
