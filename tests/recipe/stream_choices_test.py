"""Several choices of one chat response (an extension: the official package has n = 1 only)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stream_support import Run, Streams

import dsinfer_jax.recipe as recipe

THINKING = {"thinking_initial_stage": "ReasoningStart"}


def test_choices_share_one_response(streams: Streams) -> None:
    run = Run("chat", True, [], THINKING)
    processors = [
        recipe.StreamProcessor(generator, streams.options(run))
        for generator in streams.generator("chat", True).with_choices(3)
    ]
    events: list[Any] = []
    for processor in processors:
        events += processor.push(streams.pushes(run)[0])
    for index in (2, 0, 1, 0):
        events += processors[index].push(recipe.InferenceChunk.text(f"r</think>{index} ", 2))
    finishes = [processors[index].finish()[-1] for index in (1, 2, 0)]
    written = [json.loads(event.to_json()) for event in events]
    assert [each["choices"][0]["index"] for each in written[:3]] == [0, 1, 2]
    assert len({each["id"] for each in written}) == 1
    usages = [json.loads(event.to_json())["usage"] for event in finishes]
    assert usages[:2] == [None, None]
    assert usages[2]["prompt_tokens"] == 10
    assert usages[2]["completion_tokens"] == 8
    response = streams.response("chat")
    for event in [*events, *finishes]:
        response.accumulate(event)
    body = json.loads(response.to_json())
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    contents = [choice["message"]["content"] for choice in body["choices"]]
    assert contents == ["0 r0 ", "1 ", "2 "]
    assert body["usage"] == usages[2]


def test_one_choice_is_the_official_stream(streams: Streams) -> None:
    run = Run("chat", True, ["a</think>b"], THINKING)
    (generator,) = streams.generator("chat", True).with_choices(1)
    processor = recipe.StreamProcessor(generator, streams.options(run))
    assert streams.run(run, processor) == streams.run(run)


def test_a_request_for_choices_gives_that_many_generators() -> None:
    options = recipe.ConversionOptions(maximum_choices=4)
    body = {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "x"}], "n": 3}
    request = recipe.ChatCompletionRequest(body).convert(options)
    generator = recipe.ChatCompletionRequest.chunk_generator(request, "I", "M")
    assert len(generator.with_choices(request.choices)) == 3


@pytest.mark.parametrize(("n", "error"), [(0, ValueError), (-1, OverflowError), ("a", TypeError)])
def test_the_number_of_choices_is_checked(streams: Streams, n: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        streams.generator("chat", True).with_choices(n)
