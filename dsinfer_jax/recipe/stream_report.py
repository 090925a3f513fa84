"""What a stream dropped, repaired or passed on although it was broken, counted by place.

The official rules lose text in several places without a word; an operator can see here how often
and where. Units: characters for text, bytes for `incomplete_utf8`, occurrences for everything else.
"""

from __future__ import annotations

import json
import re
from collections import Counter

# Longest stretch between tags that is kept for comparison; a longer one is not only markup.
_LONGEST_SKELETON = 4096
_BETWEEN_TAGS = frozenset({"between_calls", "between_parameters", "parameter_kind"})


class StreamReport:
    """The counters of one stream, or the sum over several.

    `dropped`: output that reached no event. `repaired`: output that strict mode changed so that it
    is valid. `broken`: faults that were passed on as the official rules demand.
    """

    __slots__ = ("_between", "_length", "_skeleton", "broken", "dropped", "repaired")

    def __init__(self, dsml: str = "") -> None:
        """`dsml` is the spelling of the markup token of the stream."""
        self.dropped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self._between: list[str] = []
        self._length = 0
        # The parts of well-formed tags that the parser does not match as markers.
        self._skeleton = re.compile(
            r'(?: ?(?:tool_)?calls>| ?invoke>| ?parameter>|>|string=")?\s*'
            rf"(?:<{re.escape(dsml)} ?)?\s*"
        )

    def note_ignored(self, place: str, text: str) -> None:
        """Count text that no event will hold; the skeleton of well-formed tags is not counted."""
        if place not in _BETWEEN_TAGS or self._length > _LONGEST_SKELETON:
            self.dropped[place] += len(text)
        else:
            self._between.append(text)
            self._length += len(text)

    def end_stretch(self, place: str | None) -> None:
        """The ignored text of `place` ends here: decide whether it was only markup."""
        if not self._between or place is None:
            return
        text = "".join(self._between)
        self._between.clear()
        self._length = 0
        rest = len(text) - len(self._skeleton.match(text)[0])  # type: ignore[index]
        if rest:
            self.dropped[place] += rest

    def add(self, other: StreamReport) -> None:
        """Add the counters of another stream to these."""
        self.dropped.update(other.dropped)
        self.repaired.update(other.repaired)
        self.broken.update(other.broken)

    def to_json(self) -> str:
        """The three tables as compact JSON; places that never counted are absent."""
        tables = {
            name: {place: count for place, count in table.items() if count}
            for name, table in [
                ("dropped", self.dropped),
                ("repaired", self.repaired),
                ("broken", self.broken),
            ]
        }
        return json.dumps(tables, separators=(",", ":"))
