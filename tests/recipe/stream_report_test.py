"""The counter of what a stream dropped, with the place."""

from __future__ import annotations

import json

import pytest
from stream_support import DSML, Run, Streams

import dsinfer_jax.recipe as recipe
from dsinfer_jax.recipe.stream_report import StreamReport

CALL = f'<{DSML} invoke name="f">\n</{DSML} invoke>\n'
V4_CALL = f'<{DSML}invoke name="f">\n</{DSML}invoke>\n'


@pytest.fixture(scope="module")
def streams() -> Streams:
    return Streams(recipe)


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        ("plain text", {}),
        ("</think>\n\nanswer", {"leading_newline": 2}),
        ("</think>a</think>b", {"think_end_in_content": len("</think>")}),
        (f"a<{DSML} calls>\n{CALL}</{DSML} calls>", {}),
        (f"a<{DSML}tool_calls>\n{V4_CALL}{V4_CALL}</{DSML}tool_calls>", {}),
        (f"a<{DSML} calls>\n{CALL}</{DSML} calls>\nafter", {"after_calls": len("\nafter")}),
        (f"a<{DSML} calls>\n{CALL}junk\n{CALL}</{DSML} calls>", {"between_calls": 9}),
        (f"a<{DSML} calls>\n{CALL * 2}</{DSML} calls>{CALL}", {"after_calls": len(CALL)}),
        (f"a<{DSML} calls>\n" + "x" * 9000, {"between_calls": 9000}),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_dropped_text_is_counted_by_place(
    streams: Streams, text: str, dropped: dict[str, int], size: int
) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    run = Run("chat", True, pieces, {"thinking_initial_stage": "ReasoningStart"})
    processor = streams.processor(run)
    streams.run(run, processor)
    found = {place: count for place, count in processor.report.dropped.items() if count}
    expected = dict(dropped)
    if "between_calls" in expected and "junk" in text:
        # What follows the junk cannot be told from it.
        assert set(found) == {"between_calls"}
        assert 4 <= found["between_calls"] <= len(f"junk\n<{DSML} ")
    else:
        assert found == expected


def test_reports_add_up_and_are_json() -> None:
    total = StreamReport()
    for _ in range(2):
        report = StreamReport()
        report.dropped["after_calls"] += 3
        report.dropped["after_stop_sequence"] += 0
        report.repaired["argument_json"] += 1
        report.broken["empty_answer"] += 1
        total.add(report)
    assert json.loads(total.to_json()) == {
        "dropped": {"after_calls": 6},
        "repaired": {"argument_json": 2},
        "broken": {"empty_answer": 2},
    }
