"""The cost of a piece does not grow with what came before it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from stream_support import DIALECTS, DSML, TOKENIZER_JSON, Run, Streams

import dsinfer_jax.recipe as recipe

SMALL, LARGE = 250_000, 1_000_000
PIECE = 16
# Four times the input takes four times as long; sixteen times as long if the cost were quadratic.
LARGEST_RATIO = 8.0


def call(kind: str, value: str) -> str:
    return (
        f'<{DSML} calls>\n<{DSML} invoke name="f">\n<{DSML} parameter name="a" string="{kind}">'
        f"{value}</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>"
    )


def seconds(streams: Streams, text: str, dialect: str) -> float:
    """Processor time of streaming the text, events to JSON included."""
    best = float("inf")
    for _ in range(2):
        processor = streams.processor(Run(dialect, True, [], {}))
        push, piece = processor.push, recipe.InferenceChunk.text
        start = time.process_time()
        for position in range(0, len(text), PIECE):
            for event in push(piece(text[position : position + PIECE], 1)):
                event.to_json()
        for event in processor.finish():
            event.to_json()
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize(
    ("kind", "letters"),
    [("true", 'words, lines\n and "quotes" '), ("true", "< </ <｜ "), ("false", "[1, 2], ")],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_long_argument_streams_in_linear_time(
    streams: Streams, dialect: str, kind: str, letters: str
) -> None:
    def text(size: int) -> str:
        return call(kind, letters * (size // len(letters)))

    small, large = (seconds(streams, text(size), dialect) for size in (SMALL, LARGE))
    assert large < LARGEST_RATIO * small


@pytest.mark.parametrize(
    "make",
    [
        lambda size: "plain text, " * (size // 12),
        lambda size: "\n" * size,
        lambda size: "<" * size,
        lambda size: "</think" * (size // 7),
        lambda size: call("true", "x") * (size // len(call("true", "x"))),
    ],
    ids=["text", "newlines", "brackets", "almost markers", "after the calls"],
)
def test_any_output_streams_in_linear_time(streams: Streams, make: Callable[[int], str]) -> None:
    small, large = (seconds(streams, make(size), "chat") for size in (SMALL // 4, LARGE // 4))
    assert large < LARGEST_RATIO * small


def test_the_first_delta_comes_at_once(streams: Streams) -> None:
    text = call("true", "x" * LARGE)
    processor = streams.processor(Run("chat", True, [], {}))
    for position in range(0, len(text), 4):
        events = processor.push(recipe.InferenceChunk.text(text[position : position + 4], 1))
        if any('"arguments":"x' in event.to_json() for event in events):
            break
    assert position < len(text) / 1000


def test_ids_that_never_complete_a_character_cost_the_same() -> None:
    streams = Streams(recipe, TOKENIZER_JSON)
    token = next(
        number
        for number, data in streams.tokenizer.token_bytes.items()
        if len(data) == 1 and 0x80 <= data[0] < 0xC0
    )

    def run(count: int) -> float:
        processor = streams.processor(Run("chat", True, [], {}))
        start = time.process_time()
        for _ in range(count):
            assert processor.push(recipe.InferenceChunk.tokens([token])) == []
        return time.process_time() - start

    assert min(run(8000) for _ in range(2)) < LARGEST_RATIO * min(run(2000) for _ in range(2))
