"""Strict mode (an extension): what it repairs, what it counts, and that it is off by default."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from stream_support import (
    DSML,
    Result,
    Run,
    Streams,
    random_cuts,
    random_run,
)

import dsinfer_jax.recipe as recipe
from dsinfer_jax.recipe.stream_report import StreamReport

THINKING = {"thinking_initial_stage": "ReasoningStart"}
EOS = "<｜end▁of▁sentence｜>"


def strict_run(streams: Streams, run: Run) -> tuple[Result, StreamReport]:
    processor = streams.processor(run, strict=True)
    return streams.run(run, processor), processor.report


def call_text(*parameters: str) -> str:
    """A block with one call; parameters are written out after `parameter `."""
    inner = "".join(f"<{DSML} parameter {text}</{DSML} parameter>\n" for text in parameters)
    return f'<{DSML} calls>\n<{DSML} invoke name="f">\n{inner}</{DSML} invoke>\n</{DSML} calls>'


def arguments(result: Result) -> Any:
    calls = result.body["choices"][0]["message"]["tool_calls"]
    return json.loads(calls[0]["function"]["arguments"])


def test_off_by_default() -> None:
    assert recipe.ParsingOptions().strict is False
    options = recipe.ParsingOptions()
    options.strict = True
    assert options.strict is True
    with pytest.raises(TypeError):
        options.strict = 1  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("parameter", "value", "repaired"),
    [
        ('name="a" string="false">{oops', {"a": "{oops"}, "argument_json"),
        ('name="a" string="false">', {"a": ""}, "argument_json"),
        ('name="a" string="false">NaN', {"a": "NaN"}, "argument_json"),
        ('name="a" string="false">1 2', {"a": "1 2"}, "argument_json"),
        ('name="a b" string="false">5', {"a b": 5}, "parameter_name"),
        ('name="a"b" string="true">x', {'a"b': "x"}, "parameter_name"),
        ('name=a string="true">x', {"a": "x"}, "parameter_name"),
        ('name="a\\n" string="true">x', {"a\\n": "x"}, "parameter_name"),
        ('name="a" string="false">[1, {"b": null}]', {"a": [1, {"b": None}]}, None),
        ('name="a" string="true">{oops "x"\n', {"a": '{oops "x"\n'}, None),
    ],
)
def test_arguments_always_parse(
    streams: Streams, parameter: str, value: dict[str, Any], repaired: str | None
) -> None:
    text = call_text(parameter, 'name="last" string="true">z')
    for pieces in ([text], list(text)):
        result, report = strict_run(streams, Run("chat", True, pieces, THINKING))
        assert arguments(result) == value | {"last": "z"}
        assert dict(report.repaired) == ({repaired: 1} if repaired else {})


def test_a_parameter_without_a_value_is_left_out(streams: Streams) -> None:
    text = call_text('name="a"', 'name="b" string="true">x')
    result, report = strict_run(streams, Run("chat", True, [text], THINKING))
    assert arguments(result) == {"b": "x"}
    assert report.dropped["parameter_without_value"] == 1


def test_closed_calls_of_soup_parse(streams: Streams) -> None:
    """Every call that was closed, whatever the model wrote inside, has a JSON object."""
    parsed = 0
    for seed in range(400):
        run = random_run(random.Random(seed))
        run = Run("chat", True, run.pieces, {**THINKING, "starts_in_tool_calls": True})
        text = "".join(run.pieces)
        result, _ = strict_run(streams, run)
        calls = result.body["choices"][0]["message"].get("tool_calls", [])
        for call in calls[:-1] if not text.endswith(f"</{DSML} calls>") else calls:
            written = call["function"]["arguments"]
            if written.endswith("}"):
                assert isinstance(json.loads(written), dict), repr(run)
                parsed += 1
    assert parsed > 50


def test_strings_still_stream(streams: Streams) -> None:
    run = Run("chat", True, [], THINKING)
    processor = streams.processor(run, strict=True)
    text = call_text('name="a" string="true">x')
    processor.push(recipe.InferenceChunk.text(text[: text.index("x</")]))
    events = processor.push(recipe.InferenceChunk.text("more"))
    assert "more" in events[-1].to_json()


def test_values_held_at_the_end_are_delivered_as_they_are(streams: Streams) -> None:
    text = f'<{DSML} calls>\n<{DSML} invoke name="f">\n<{DSML} parameter name="a" string="false">[1'
    result, _ = strict_run(streams, Run("chat", True, [text], THINKING, "Length"))
    calls = result.body["choices"][0]["message"]["tool_calls"]
    assert calls[0]["function"]["arguments"] == '{"a": [1'


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_control_ids_do_not_reach_text(id_streams: Streams, dialect: str) -> None:
    encode = id_streams.tokenizer.encode
    ids = encode(f"plan{EOS}</think>a<think>b{EOS}")
    run = Run(dialect, True, [[token] for token in ids], THINKING)
    result, report = strict_run(id_streams, run)
    assert EOS not in result.accumulated
    assert "<think>" not in result.accumulated
    assert report.dropped["control_token_in_reasoning"] == 1
    assert report.dropped["control_token_in_content"] == 2
    # All ids are counted all the same.
    usage = result.body["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == len(ids)
    # The official rules spell them out.
    assert EOS in id_streams.run(run).accumulated


def test_blanks_around_json_do_not_depend_on_the_cuts(streams: Streams) -> None:
    text = "here it is:```json\n{}\n``` that was it"
    options = {"parse_json_output": True}
    rng = random.Random(3)
    contents = set()
    for _ in range(50):
        run = Run("chat", False, random_cuts(rng, text), options)
        result, report = strict_run(streams, run)
        contents.add(result.body["choices"][0]["message"]["content"])
        assert report.dropped["text_around_json"] == len("here it is: that was it")
    assert contents == {" {} "}


def test_a_tag_cut_off_by_the_end_is_dropped(streams: Streams) -> None:
    run = Run("chat", False, ["text\n\n<｜DS"], {}, "Length")
    result, report = strict_run(streams, run)
    assert result.body["choices"][0]["message"]["content"] == "text"
    assert report.dropped["partial_marker"] == len("\n\n<｜DS")
    assert streams.run(run).body["choices"][0]["message"]["content"] == "text\n\n<｜DS"


def test_well_formed_answers_are_the_same_with_and_without(streams: Streams) -> None:
    text = "plan</think>Sure.\n\n" + call_text(
        'name="a" string="true">x "y"', 'name="n" string="false">5', 'name="o" string="false">{}'
    )
    run = Run("messages", True, list(text), THINKING)
    result, report = strict_run(streams, run)
    assert result.accumulated == streams.run(run).accumulated
    assert not report.repaired
    assert not report.broken
