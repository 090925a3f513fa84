"""Explaining a prompt: nothing is missing, nothing is changed, sources are right."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from request_maker import RequestMaker
from small_tokenizer import small_tokenizer_json

from dsinfer_jax.recipe import ConversionError, ConversionOptions, Tokenizer
from dsinfer_jax.recipe.__main__ import main
from dsinfer_jax.recipe.encoding import encode_prompt
from dsinfer_jax.recipe.explain import REQUESTS, TEMPLATE, _render, explain

REQUESTS_TRIED = 400


def test_random_requests_are_explained_completely() -> None:
    tokenizer = Tokenizer.from_str(small_tokenizer_json())
    explained = 0
    for seed in range(REQUESTS_TRIED):
        maker = RequestMaker(Random(seed))
        dialect = maker.pick(tuple(REQUESTS))
        body = json.dumps(getattr(maker, dialect)())
        try:
            rendered, _ = _render(REQUESTS[dialect], body, ConversionOptions())
        except (ConversionError, ValueError):
            continue
        explanation = explain(body, dialect=dialect, tokenizer=tokenizer)
        explained += 1
        assert explanation.prompt == rendered.prompt
        places = [(s.start, s.end) for s in explanation.segments]
        assert [start for start, _ in places[1:]] == [end for _, end in places[:-1]]
        assert places[0][0] == 0
        assert places[-1][1] == len(rendered.prompt)
        control = [(s.start, s.end) for s in explanation.segments if s.kind == "control"]
        assert control == rendered.special_ranges
        assert explanation.tokens is not None
        ids = [token.id for token in explanation.tokens]
        assert ids == encode_prompt(rendered, tokenizer)
        json.loads(explanation.to_json())
    assert explained > REQUESTS_TRIED / 4


CHAT = {
    "model": "DeepSeek-V4.1-Flash",
    "messages": [
        {"role": "system", "content": "SYSTEM"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "ONE"}, {"type": "text", "text": "TWO"}],
        },
        {
            "role": "assistant",
            "reasoning_content": "THOUGHT",
            "content": "ANSWER",
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"city":"PARIS","days":12345}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "RESULT"},
        {"role": "user", "content": "<think>LAST"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "THE-TOOL"}}],
    "reasoning_effort": "low",
}
SOURCES = {
    "SYSTEM": "messages[0].content",
    "ONE": "messages[1].content[0].text",
    "TWO": "messages[1].content[1].text",
    "THOUGHT": "messages[2].reasoning_content",
    "ANSWER": "messages[2].content",
    "PARIS": "messages[2].tool_calls[0].function.arguments.city",
    "12345": "messages[2].tool_calls[0].function.arguments.days",
    "RESULT": "messages[3].content",
    "<think>LAST": "messages[4].content",
    "THE-TOOL": "tools[0]",
    "Reasoning Effort: 50": "reasoning_effort",
    "You MUST strictly follow": TEMPLATE,
}


@pytest.mark.parametrize(("text", "source"), SOURCES.items())
def test_sources_of_a_chat_request(text: str, source: str) -> None:
    explanation = explain(CHAT)
    place = explanation.prompt.index(text)
    [segment] = [s for s in explanation.segments if s.start <= place < s.end]
    assert (segment.kind, segment.source) == ("text", source)


def test_other_dialects_and_images() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    tool_use = {"type": "tool_use", "id": "1", "name": "f", "input": {"city": "PARIS"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "RESULT"}
    messages: dict[str, Any] = {
        "model": "DeepSeek-V4.1-Flash",
        "messages": [
            {"role": "user", "content": [image, {"type": "text", "text": "SEE"}]},
            {"role": "assistant", "content": [tool_use]},
            {"role": "user", "content": [result]},
        ],
    }
    shown = {s.source: s for s in explain(messages, dialect="messages").segments}
    assert shown["messages[0].content[1].text"].kind == "text"
    assert shown["messages.0.content[0]"].kind == "control"
    assert "messages[1].content[0].input.city" in shown
    assert "messages[2].content[0].content" in shown
    responses = {"model": "DeepSeek-V4.1-Flash", "instructions": "BE", "input": "ASK"}
    sources = {s.source for s in explain(responses, dialect="responses").segments}
    assert {"instructions", "input"} <= sources


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(CHAT), encoding="utf-8")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(small_tokenizer_json(), encoding="utf-8")
    assert main(["render", str(request)]) == 0
    prompt = capsys.readouterr().out
    assert prompt == explain(CHAT).prompt
    assert main(["encode", str(request), "--tokenizer", str(tokenizer)]) == 0
    ids = json.loads(capsys.readouterr().out)
    assert len(ids) > 100
    assert main(["explain", str(request)]) == 0
    assert "\033[1;31m<｜System｜>\033[0m" in capsys.readouterr().out
    assert main(["explain", "--json", str(request)]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == prompt
    request.write_text("{", encoding="utf-8")
    assert main(["render", str(request)]) == 1
    assert "invalid JSON request" in capsys.readouterr().err
