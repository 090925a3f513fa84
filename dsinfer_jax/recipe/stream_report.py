"""What a stream dropped, repaired or passed on although it was broken, counted by place.

The official rules lose text in several places without a word; an operator can see here how often
and where. Units: characters for text, bytes for `incomplete_utf8`, occurrences for everything else.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache

# Longest stretch between tags that is kept for comparison; a longer one is not only markup.
_LONGEST_SKELETON = 256
_BETWEEN_TAGS = frozenset({"between_calls", "between_parameters", "parameter_kind"})


class StreamReport:
    """The counters of one stream, or the sum over several.

    `dropped`: output that reached no event. `repaired`: output that strict mode changed so that it
    is valid. `broken`: faults that were passed on as the official rules demand.
    """

    __slots__ = ("_between", "_dsml", "_is_long", "_length", "broken", "dropped", "repaired")

    def __init__(self, dsml: str = "") -> None:
        """`dsml` is the spelling of the markup token of the stream."""
        self.dropped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self._between: list[str] = []
        self._length = 0
        self._is_long = False  # the stretch is too long to be only markup
        self._dsml = dsml

    def note_ignored(self, place: str, text: str) -> None:
        """Count text that no event will hold; the skeleton of well-formed tags is not counted."""
        if place not in _BETWEEN_TAGS or self._is_long:
            self.dropped[place] += len(text)
            return
        self._between.append(text)
        self._length += len(text)
        if self._length > _LONGEST_SKELETON:
            self.dropped[place] += _beyond_skeleton(self._dsml, self._take_between())
            self._is_long = True

    def end_stretch(self, place: str) -> None:
        """The ignored text of `place` ends here: decide whether it was only markup."""
        self._is_long = False
        if self._between:
            rest = _beyond_short_skeleton(self._dsml, self._take_between())
            if rest:
                self.dropped[place] += rest

    def _take_between(self) -> str:
        text = "".join(self._between)
        self._between.clear()
        self._length = 0
        return text

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


def _beyond_skeleton(dsml: str, text: str) -> int:
    """How many characters of the text are not parts of well-formed tags.

    These parts are what the parser does not match as markers: ends of tags, line breaks, and the
    beginning of the next tag.
    """
    skeleton = re.match(
        r'(?: ?(?:tool_)?calls>| ?invoke>| ?parameter>|>|string=")?\s*'
        rf"(?:<{re.escape(dsml)} ?)?\s*",
        text,
    )
    assert skeleton is not None  # it matches the empty text
    return len(text) - skeleton.end()


# Well-formed calls repeat a few short stretches.
_beyond_short_skeleton = lru_cache(maxsize=256)(_beyond_skeleton)
