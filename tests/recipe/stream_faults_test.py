"""Faults that other systems had while streaming, one test per kind; Rnn are their known numbers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from stream_support import (
    DIALECTS,
    DSML,
    Result,
    Run,
    Streams,
    random_cuts,
)

import dsinfer_jax.recipe as recipe

THINKING = {"thinking_initial_stage": "ReasoningStart"}
TAGS = {"V4": ("", "tool_calls"), "V4.1": (" ", "calls")}


def call(name: str, *parameters: tuple[str, str, str], version: str = "V4.1") -> str:
    """An invocation; parameters are (name, "true" or "false", value)."""
    gap = TAGS[version][0]
    inner = "".join(
        f'<{DSML}{gap}parameter name="{key}" string="{kind}">{value}</{DSML}{gap}parameter>\n'
        for key, kind, value in parameters
    )
    return f'<{DSML}{gap}invoke name="{name}">\n{inner}</{DSML}{gap}invoke>\n'


def block(*calls: str, version: str = "V4.1") -> str:
    gap, word = TAGS[version]
    return f"\n\n<{DSML}{gap}{word}>\n{''.join(calls)}</{DSML}{gap}{word}>"


def chat(streams: Streams, *pieces: Any, finish: str = "Stop", **options: Any) -> Result:
    return streams.run(Run("chat", True, list(pieces), {**THINKING, **options}, finish))


def message(result: Result) -> dict[str, Any]:
    return result.body["choices"][0]["message"]


def arguments(result: Result) -> list[str]:
    return [each["function"]["arguments"] for each in message(result)["tool_calls"]]


@pytest.mark.parametrize("version", ["V4", "V4.1"])
def test_r01_markup_never_reaches_content(streams: Streams, version: str) -> None:
    text = "</think>Sure. " + block(call("lookup", ("q", "true", "x"), version=version),
                                    version=version)  # fmt: skip
    cuts = [[text[:n], text[n:]] for n in range(1, len(text))]
    rng = random.Random(1)
    for _ in range(300):
        first, second = sorted(rng.sample(range(1, len(text)), 2))
        cuts.append([text[:first], text[first:second], text[second:]])
    for pieces in cuts:
        result = chat(streams, *pieces)
        assert message(result)["content"] == "Sure. "
        assert arguments(result) == ['{"q": "x"}']


def test_r04_a_broken_call_does_not_take_the_next_with_it(streams: Streams) -> None:
    text = "</think>" + block(call("a", ("p", "false", "{oops")), call("b", ("q", "true", "x")))
    run = Run("chat", True, [text], THINKING)
    processor = streams.processor(run)
    result = streams.run(run, processor)
    assert arguments(result) == ['{"p": {oops}', '{"q": "x"}']
    assert processor.report.broken == {"argument_json": 1}


def test_r05_a_call_ends_reasoning_that_was_not_closed(streams: Streams) -> None:
    result = chat(streams, "I will check ", block(call("f")))
    assert message(result)["reasoning_content"] == "I will check "
    assert result.body["choices"][0]["finish_reason"] == "tool_calls"
    assert arguments(result) == ["{}"]


def test_r06_no_closing_tag_inside_arguments(streams: Streams) -> None:
    text = "</think>" + block(call("f", ("a", "true", "x"), ("b", "true", "y")))
    for tag in range(2):
        start = [n for n in range(len(text)) if text.startswith(f"</{DSML} parameter", n)][tag]
        for offset in range(len(f"</{DSML} parameter>") + 1):
            result = chat(streams, text[: start + offset], text[start + offset :])
            assert json.loads(arguments(result)[0]) == {"a": "x", "b": "y"}


def test_r08_the_attribute_alone_decides_the_type(streams: Streams) -> None:
    text = block(call("undeclared", ("n", "false", "5"), ("cfg", "false", '{"a":[1,null]}')))
    assert json.loads(arguments(chat(streams, text))[0]) == {"n": 5, "cfg": {"a": [1, None]}}


@pytest.mark.parametrize("encoding", [recipe.DeepseekV41Encoding, recipe.DeepseekV4Encoding])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"arguments": {"a": 1}}', {"arguments": {"a": 1}}),
        ('{"input": "x", "arguments": "y"}', {"input": "x", "arguments": "y"}),
        ("not an object", {"arguments": "not an object"}),
        ("[1]", {"arguments": "[1]"}),
    ],
)
def test_r10_parameter_names_survive_the_round_trip(
    streams: Streams, encoding: Any, written: str, read: dict[str, Any]
) -> None:
    history = [
        recipe.UserMessage("x"),
        recipe.AssistantMessage("", None, [recipe.ToolCall("1", "run", written)]),
    ]
    prompt = encoding().render_conversation(recipe.Conversation(history)).prompt
    rendered = prompt[prompt.index(f"\n\n<{DSML}") :].replace("<｜end▁of▁sentence｜>", "\0")
    result = chat(streams, rendered.split("\0")[0])
    assert json.loads(arguments(result)[0]) == read


def test_r14_r15_items_open_before_their_deltas_and_events_are_numbered(streams: Streams) -> None:
    text = "plan</think>hello" + block(call("f", ("a", "true", "x")), call("g"))
    run = Run("responses", True, list(text), THINKING)
    events = streams.run(run).joined
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    steps = [kind for n, kind in enumerate(kinds) if n == 0 or kind != kinds[n - 1]]
    text_item = ["content_part.done", "output_item.done"]
    call_item = ["output_item.added", "function_call_arguments.delta",
                 "function_call_arguments.done", "output_item.done"]  # fmt: skip
    assert steps == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", *text_item),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", *text_item),
        *call_item,
        *call_item,
        "completed",
    ]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", *["function_call"] * 2]
    assert output[1]["content"][0]["text"] == "hello"


def test_r16_cache_reads_are_known_at_the_start(streams: Streams) -> None:
    events = streams.run(Run("messages", False, ["a"], {})).joined
    started, ended = events[0]["message"]["usage"], events[-2]["usage"]
    assert started["cache_read_input_tokens"] == ended["cache_read_input_tokens"] == 3
    assert started["cache_creation_input_tokens"] == 0


@pytest.mark.parametrize("hit", [0, 6, 10])
def test_r17_no_token_is_counted_twice(streams: Streams, hit: int) -> None:
    usage = recipe.PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=hit)
    for dialect in DIALECTS:
        run = Run(dialect, False, [], {})
        processor, response = streams.processor(run), streams.response(dialect)
        events = processor.push(recipe.InferenceChunk.ready(prompt_usage=usage))
        events += processor.finish()
        for event in events:
            response.accumulate(event)
        reported = json.loads(response.to_json())["usage"]
        if dialect == "messages":
            parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        else:
            parts = ("prompt_cache_hit_tokens", "prompt_cache_miss_tokens")
        total = sum(reported.get(part, 0) for part in parts)
        assert total == (10 if dialect != "responses" else 0)
        if dialect == "responses":
            assert reported["input_tokens"] == 10
            assert reported["input_tokens_details"]["cached_tokens"] == hit


@pytest.mark.parametrize("text", ["世界", "😀", "👨‍👩‍👧‍👦", "🇨🇳", "e\u0301a\u0308", "a世b😀c"])
def test_r20_characters_wait_until_they_are_whole(id_streams: Streams, text: str) -> None:
    ids = id_streams.tokenizer.encode(text)
    result = id_streams.run(Run("chat", False, [[token] for token in ids], {}))
    assert message(result)["content"] == text
    for event in result.joined:
        assert "\ufffd" not in json.dumps(event, ensure_ascii=False)


def test_r21_an_output_that_stops_inside_a_character(id_streams: Streams) -> None:
    ids = id_streams.tokenizer.encode("a😀")
    assert len(ids) > 2
    run = Run("chat", False, [ids[:1], ids[1:-1]], {}, "Length")
    processor = id_streams.processor(run)
    result = id_streams.run(run, processor)
    assert message(result)["content"] == "a"
    assert result.body["choices"][0]["finish_reason"] == "length"
    assert processor.report.dropped["incomplete_utf8"] == len("😀".encode()) - 1


def test_r22_stop_sequences_do_not_change_the_routing(streams: Streams) -> None:
    for stops in ([], ["QQQQ"], ["</think>"], ["<"]):
        result = chat(streams, "ab</th", "ink>cd", stop_sequences=stops)
        assert message(result)["reasoning_content"] == "ab"
        assert message(result)["content"] == "cd"


def test_r24_text_held_before_a_stop_is_delivered(streams: Streams) -> None:
    run = Run("chat", False, ["2 <;;rest"], {"stop_sequences": [";;"]}, finish=None)
    processor = streams.processor(run)
    result = streams.run(run, processor)
    assert message(result)["content"] == "2 <"
    assert processor.report.dropped["after_stop_sequence"] == len("rest")
    assert result.body["choices"][0]["finish_reason"] == "stop"


def test_r26_stops_work_the_same_for_ids(streams: Streams, id_streams: Streams) -> None:
    rng = random.Random(5)
    for _ in range(200):
        text = "".join(rng.choices(["STOP", "ST", "OP", ";", "a", " ", "世", "\n"], k=8))
        options = {"stop_sequences": ["STOP", ";;"]}
        ids = id_streams.tokenizer.encode(text)
        by_text = streams.run(Run("messages", False, random_cuts(rng, text), options))
        by_id = id_streams.run(Run("messages", False, random_cuts(rng, ids), options))
        for field in ("content", "stop_reason", "stop_sequence"):
            assert by_text.body[field] == by_id.body[field], text


def test_r32_reasoning_tokens_are_the_same_in_all_modes(id_streams: Streams) -> None:
    encode = id_streams.tokenizer.encode
    thinking, answer = encode("one two three four"), encode("five six")
    ids = [*thinking, *encode("</think>"), *answer]
    for pieces in ([ids], [[token] for token in ids]):
        result = id_streams.run(Run("chat", True, pieces, THINKING))
        for usage in (result.joined[-1]["usage"], result.body["usage"]):
            assert usage["completion_tokens"] == len(thinking) + 1 + len(answer)
            assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thinking)}
    # Unknown without a tokenizer: absent, not zero.
    unknown = Streams(recipe).run(Run("chat", True, ["a</think>b"], THINKING))
    assert "completion_tokens_details" not in unknown.body["usage"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_r35_reasoning_without_an_answer_is_delivered(streams: Streams, dialect: str) -> None:
    body = streams.run(Run(dialect, True, ["plan"], THINKING)).body
    if dialect == "chat":
        assert body["choices"][0]["message"] == {
            "role": "assistant", "content": "", "reasoning_content": "plan"
        }  # fmt: skip
        assert body["choices"][0]["finish_reason"] == "stop"
    elif dialect == "messages":
        assert [block["type"] for block in body["content"]] == ["thinking"]
        assert body["content"][0]["thinking"] == "plan"
        assert body["stop_reason"] == "end_turn"
    else:
        assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "plan"}]
        assert body["status"] == "completed"


def test_r35_empty_answers_are_counted(streams: Streams) -> None:
    for pieces, empty in ([["plan"], 1], [["plan</think>"], 1], [["a</think>b"], 0]):
        run = Run("chat", True, pieces, THINKING)
        processor = streams.processor(run)
        streams.run(run, processor)
        assert processor.report.broken["empty_answer"] == empty


def test_r36_a_quiet_stream_can_be_kept_open(streams: Streams) -> None:
    for dialect in DIALECTS:
        run = Run(dialect, True, [], THINKING)
        processor = streams.processor(run)
        assert processor.ping() == []  # not before the start
        processor.push(streams.pushes(run)[0])
        pings = [json.loads(event.to_json()) for event in processor.ping()]
        assert pings == ([{"type": "ping"}] if dialect == "messages" else [])
        processor.finish()
        assert processor.ping() == []


@pytest.mark.parametrize("version", ["V4", "V4.1"])
def test_r39_a_length_stop_inside_a_block_shows_no_markup(streams: Streams, version: str) -> None:
    calls = block(call("f", ("a", "true", "x y"), ("n", "false", "5"), version=version),
                  version=version)  # fmt: skip
    for end in range(len(calls) + 1):
        run = Run("chat", True, ["</think>ok" + calls[:end]], THINKING, "Length")
        choice = streams.run(run).body["choices"][0]
        assert choice["finish_reason"] == "length"
        if end >= len(f"\n\n<{DSML}"):
            assert choice["message"]["content"] == "ok"
        # The official rules send the beginning of a tag as text; strict mode does not.
        strict = streams.run(run, streams.processor(run, strict=True)).body["choices"][0]
        assert strict["message"]["content"].rstrip("\n<") == "ok"
        for each in strict["message"].get("tool_calls", []):
            written = each["function"]["arguments"].rstrip("</")
            assert '{"a": "x y", "n": 5}'.startswith(written)
        assert streams.run(replace(run, dialect="messages")).body["stop_reason"] == "max_tokens"
        body = streams.run(replace(run, dialect="responses")).body
        assert body["status"] == "incomplete"
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["output"][-1]["status"] == "incomplete"


def test_r40_the_same_name_in_two_namespaces(streams: Streams) -> None:
    request = recipe.ResponsesRequest(
        {
            "model": "DeepSeek-V4.1-Flash",
            "input": "x",
            "tools": [
                {"type": "namespace", "name": name, "description": "d",
                 "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]}
                for name in ("fs", "db")
            ],
        }
    ).convert(recipe.ConversionOptions())  # fmt: skip
    generator = recipe.ResponsesRequest.chunk_generator(request, "I", "M")
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    events = processor.push(
        recipe.InferenceChunk.text(block(call("fs::read"), call("db::read")))
    ) + processor.finish()  # fmt: skip
    items = json.loads(events[-1].to_json())["response"]["output"]
    assert [(item["namespace"], item["name"]) for item in items] == [("fs", "read"), ("db", "read")]


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [("a", "Stop", "stop"), ("a", "Length", "length"), (block(call("f")), "Stop", "tool_calls")],
)
def test_r42_the_last_chunk_has_the_official_shape(
    streams: Streams, text: str, finish: str, reason: str
) -> None:
    last = chat(streams, text, finish=finish).joined[-1]
    choice = last["choices"][0]
    assert choice == {
        "index": 0,
        "delta": {"content": "", "reasoning_content": None},
        "logprobs": None,
        "finish_reason": reason,
    }
    assert last["usage"]["completion_tokens"] == 1
