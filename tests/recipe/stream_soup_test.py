"""Marker soup from a grammar: whatever the model writes, no exception and one finish."""

from __future__ import annotations

import random

import pytest
from stream_support import DIALECTS, SOUP, Run, Streams, random_cuts

from dsinfer_jax.recipe.inference import InferenceChunk

STAGES = ["ReasoningStart", "ReasoningContinuation", "ContentContinuation", None]


def soup_run(rng: random.Random, longest: int) -> Run:
    text = "".join(rng.choices(SOUP, k=rng.randint(0, longest)))
    options = {
        "parse_tool_calls": rng.random() < 0.8,
        "starts_in_tool_calls": rng.random() < 0.2,
        "parse_json_output": rng.random() < 0.2,
        "thinking_initial_stage": rng.choice(STAGES),
    }
    # The empty spelling is allowed, though the official package can crash on it.
    spellings = rng.choice([{}, {}, {"dsml": ""}, {"thinking_end": ""}, {"dsml": "</think>"}])
    finish = rng.choice(["Stop", "Length", "ContentFilter", None])
    pieces = random_cuts(rng, text)
    return Run(rng.choice(DIALECTS), True, pieces, options, finish, spellings=spellings)


def check(id_streams: Streams, rng: random.Random, longest: int) -> None:
    run = soup_run(rng, longest)
    for strict in (False, True):
        result = id_streams.run(run, id_streams.processor(run, strict=strict))
        assert result.error is None, repr(run)
        assert result.finished
        finishes = {
            "chat": lambda event: event["choices"][0]["finish_reason"] is not None,
            "responses": lambda event: (
                event["type"] in ("response.completed", "response.incomplete")
            ),
            "messages": lambda event: event["type"] == "message_stop",
        }[run.dialect]
        assert [event for event in result.joined if finishes(event)] == result.joined[-1:]


def test_soup_never_fails(id_streams: Streams) -> None:
    for seed in range(300):
        check(id_streams, random.Random(seed), longest=30)


@pytest.mark.slow
def test_much_soup_never_fails(id_streams: Streams) -> None:
    for seed in range(20_000):
        check(id_streams, random.Random(10**6 + seed), longest=60)


def test_soup_without_markup_is_conserved(id_streams: Streams) -> None:
    """With tools off and thinking over, the only markup left is the think end."""
    options = {"parse_tool_calls": False, "thinking_initial_stage": "ContentContinuation"}
    for seed in range(200):
        rng = random.Random(seed)
        text = "".join(rng.choices(SOUP, k=rng.randint(0, 30)))
        run = Run("chat", False, random_cuts(rng, text), options)
        message = id_streams.run(run).body["choices"][0]["message"]
        assert message["content"] == text.replace("</think>", ""), repr(run)


def test_random_ids_never_fail(id_streams: Streams) -> None:
    """Bytes that are no characters, control ids and unknown ids in any order (fault R21)."""
    for seed in range(1000):
        rng = random.Random(seed)
        ids = [rng.randrange(rng.choice([15, 300, 1024, 5000])) for _ in range(rng.randint(0, 40))]
        pieces = random_cuts(rng, ids)
        run = Run(
            rng.choice(DIALECTS), True, pieces, {"thinking_initial_stage": rng.choice(STAGES)}
        )
        result = id_streams.run(run)
        assert result.error is None
        assert result.finished


def test_one_letter_at_a_time_is_linear_in_line_breaks(id_streams: Streams) -> None:
    """A long run of line breaks may belong to a marker: all of it waits, and all of it comes."""
    run = Run("chat", True, [], {"thinking_initial_stage": "ReasoningStart"})
    processor = id_streams.processor(run)
    events = [event for _ in range(5000) for event in processor.push(InferenceChunk.text("\n"))]
    events += processor.push(InferenceChunk.text("a"))
    for _ in range(5000):
        assert processor.push(InferenceChunk.text("\n")) == []
    events += processor.push(InferenceChunk.text("b"))
    response = id_streams.response("chat")
    for event in events:
        response.accumulate(event)
    assert '"reasoning_content":"a' + "\\n" * 5000 + 'b"' in response.to_json()
