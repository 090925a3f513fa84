"""Law 7: any cutting of an output gives the same joined events (chunk law); text out is text in
minus recognised markup (conservation law); every stream ends once with all items closed (closure
law). In all dialects, for text and ids, with the tags of V4 and of V4.1."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
from stream_support import (
    DIALECTS,
    DSML,
    TOKENIZER_JSON,
    Result,
    Run,
    Streams,
    random_cuts,
    random_output,
    random_run,
)

import dsinfer_jax.recipe

THINKING = {"thinking_initial_stage": "ReasoningStart"}
SEEDS = range(60)


@pytest.fixture(scope="module")
def streams() -> Streams:
    return Streams(dsinfer_jax.recipe)


@pytest.fixture(scope="module")
def id_streams() -> Streams:
    return Streams(dsinfer_jax.recipe, TOKENIZER_JSON)


@dataclass(frozen=True)
class Answer:
    """An answer by its parts: calls are names with parameters (name, value, is a string)."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]

    def text(self, version: str) -> str:
        """As the model writes it."""
        gap, block = (" ", "calls") if version == "V4.1" else ("", "tool_calls")
        parts = [f"{self.reasoning}</think>{self.content}"]
        if self.calls:
            parts.append(f"\n\n<{DSML}{gap}{block}>\n")
        for name, parameters in self.calls:
            parts.append(f'<{DSML}{gap}invoke name="{name}">\n')
            for key, value in parameters:
                is_string = isinstance(value, str)
                written = value if is_string else json.dumps(value)
                flag = "true" if is_string else "false"
                parts.append(f'<{DSML}{gap}parameter name="{key}" string="{flag}">{written}')
                parts.append(f"</{DSML}{gap}parameter>\n")
            parts.append(f"</{DSML}{gap}invoke>\n")
        if self.calls:
            parts.append(f"</{DSML}{gap}{block}>")
        return "".join(parts)


def random_answer(rng: random.Random) -> Answer:
    """Text that is no markup but looks like it here and there."""
    shreds = [
        "a",
        " ",
        "世界",
        "😀",
        "<",
        "</",
        "think>",
        "｜",
        '"',
        "\\",
        "{",
        "\n",
        "x\n\ny",
        "`",
    ]

    def words(count: int) -> str:
        text = "".join(rng.choices(shreds, k=rng.randint(0, count)))
        # Whole markers are markup, and so is a line break that begins or ends the text. After the
        # beginning of a marker a line break is not: the last letter keeps the two apart.
        text = text.replace("</think>", "").strip("\n")
        return text and text + "."

    values = [words(6), 5, True, None, {"a": [1, None]}, [], 1.5, "", words(3)]
    calls = tuple(
        (f"tool_{index}", tuple((f"p{n}", rng.choice(values)) for n in range(rng.randint(0, 3))))
        for index in range(rng.choice([0, 1, 2, 3]))
    )
    return Answer(words(8), words(8), calls)


def parts_of(dialect: str, result: Result) -> tuple[str, str, list[tuple[str, Any]]]:
    """Reasoning, content and calls (name, arguments) of an accumulated body."""
    body = result.body
    if dialect == "chat":
        message = body["choices"][0]["message"]
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])
        ]
        return message.get("reasoning_content") or "", message["content"] or "", calls
    if dialect == "messages":
        blocks = body["content"]
        reasoning = "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
        content = "".join(b["text"] for b in blocks if b["type"] == "text")
        return reasoning, content, [
            (b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"
        ]  # fmt: skip
    texts = {"reasoning": "", "message": ""}
    calls = []
    for item in body["output"]:
        if item["type"] in texts:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            calls.append((item["name"], json.loads(item["arguments"])))
    return texts["reasoning"], texts["message"], calls


def without_usage(result: Result) -> dict[str, Any]:
    body = result.body
    body.pop("usage", None)
    return body


# ---- chunk law


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("version", ["V4", "V4.1"])
def test_every_cut_of_an_answer_gives_one_result(
    streams: Streams, dialect: str, version: str
) -> None:
    answer = Answer("plan", "Sure. ", (("f", (("city", 'a "b"\n'), ("n", 3))), ("g", ())))
    text = answer.text(version)
    whole = streams.run(Run(dialect, True, [text], THINKING))
    for position in range(1, len(text)):
        cut = streams.run(Run(dialect, True, [text[:position], text[position:]], THINKING))
        assert without_usage(cut) == without_usage(whole), text[:position]
    characters = streams.run(Run(dialect, True, list(text), THINKING))
    assert without_usage(characters) == without_usage(whole)


def test_random_cuts_of_soup_give_one_result(streams: Streams) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        run = random_run(rng)
        text = "".join(run.pieces)
        # With JSON output the official blanks depend on the cuts; strict mode has the law there.
        strict = bool(run.options["parse_json_output"])
        whole = replace(run, pieces=[text] if text else [])
        expected = streams.run(whole, streams.processor(whole, strict=strict))
        for _ in range(4):
            cut = replace(run, pieces=random_cuts(rng, text))
            result = streams.run(cut, streams.processor(cut, strict=strict))
            assert without_usage(result) == without_usage(expected), repr(cut)


def test_random_cuts_of_ids_give_one_result_with_one_usage(id_streams: Streams) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        run = random_run(rng, id_streams.tokenizer.encode)
        if run.options["parse_json_output"] or run.options["stop_sequences"]:
            continue  # usage counts whole pieces up to the stop
        ids = [token_id for piece in run.pieces for token_id in piece]
        expected = id_streams.run(replace(run, pieces=[ids] if ids else []))
        for _ in range(4):
            cut = replace(run, pieces=random_cuts(rng, ids))
            assert id_streams.run(cut).accumulated == expected.accumulated, repr(cut)


# ---- conservation law


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("version", ["V4", "V4.1"])
def test_an_answer_comes_out_in_the_parts_it_was_made_of(
    streams: Streams, dialect: str, version: str
) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        answer = random_answer(rng)
        pieces = random_cuts(rng, answer.text(version))
        run = Run(dialect, True, pieces, THINKING)
        processor = streams.processor(run)
        reasoning, content, calls = parts_of(dialect, streams.run(run, processor))
        assert (reasoning, content) == (answer.reasoning, answer.content), repr(answer)
        assert calls == [(name, dict(parameters)) for name, parameters in answer.calls]
        assert set(processor.report.dropped) <= {"leading_newline"}, repr(answer)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("version", ["V4", "V4.1"])
def test_ids_come_out_in_the_parts_they_were_made_of(
    id_streams: Streams, dialect: str, version: str
) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        answer = random_answer(rng)
        ids = id_streams.tokenizer.encode(answer.text(version))
        run = Run(dialect, True, random_cuts(rng, ids), THINKING)
        reasoning, content, calls = parts_of(dialect, id_streams.run(run))
        assert (reasoning, content) == (answer.reasoning, answer.content), repr(answer)
        assert calls == [(name, dict(parameters)) for name, parameters in answer.calls]


def test_soup_loses_only_markup_before_the_calls(streams: Streams) -> None:
    """What is visible of soup, computed by regular expressions instead of automata."""
    for seed in range(300):
        rng = random.Random(seed)
        text = random_output(rng)
        tools = rng.random() < 0.5
        run = Run("chat", True, random_cuts(rng, text), {"parse_tool_calls": tools, **THINKING})
        message = streams.run(run).body["choices"][0]["message"]
        visible = re.split(f"\n*<{DSML}", text)[0] if tools else text
        reasoning, content = visible, ""
        end = re.search("\n*</think>", visible)
        if end:
            reasoning, content = visible[: end.start()], visible[end.end() :]
            content = content.lstrip("\n").replace("</think>", "")
        assert message.get("reasoning_content") == reasoning.lstrip("\n"), repr(run)
        assert message["content"] == content, repr(run)


# ---- closure law


def check_chat(result: Result) -> None:
    events = result.joined
    finishes = [e["choices"][0]["finish_reason"] for e in events]
    assert [reason is None for reason in finishes] == [True] * (len(events) - 1) + [False]
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    hit, miss = usage["prompt_cache_hit_tokens"], usage["prompt_cache_miss_tokens"]
    assert usage["prompt_tokens"] == hit + miss
    deltas = [event["choices"][0]["delta"] for event in events]
    message = result.body["choices"][0]["message"]
    assert message["content"] == "".join(delta.get("content") or "" for delta in deltas)
    for index, call in enumerate(message.get("tool_calls", [])):
        pieces = [
            piece["function"].get("arguments", "")
            for delta in deltas
            for piece in delta.get("tool_calls", [])
            if piece["index"] == index
        ]
        assert call["function"]["arguments"] == "".join(pieces)


def check_responses(result: Result) -> None:
    events = result.joined
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] in ("response.completed", "response.incomplete")
    assert not {"response.completed", "response.incomplete"} & set(types[:-1])
    open_item: dict[str, Any] | None = None
    deltas, done = "", 0
    for event in events[2:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert open_item is None
            open_item, deltas = event["item"], ""
            assert event["output_index"] == done
            continue
        assert open_item is not None
        assert event["output_index"] == done
        if kind == "response.output_item.done":
            assert event["item"]["id"] == open_item["id"]
            assert event["item"]["status"] in ("completed", "incomplete")
            assert event["item"] == events[-1]["response"]["output"][done]
            open_item, done = None, done + 1
        elif kind.endswith(".delta"):
            assert event["item_id"] == open_item["id"]
            deltas += event["delta"]
        elif kind.endswith(".done") and kind != "response.content_part.done":
            whole = event.get("text", event.get("arguments", event.get("input")))
            assert whole == deltas
    assert open_item is None
    assert len(events[-1]["response"]["output"]) == done
    assert result.body == events[-1]["response"]
    usage = result.body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def check_messages(result: Result) -> None:
    events = result.joined
    types = [event["type"] for event in events]
    assert types[0] == "message_start"
    assert types[-2:] == ["message_delta", "message_stop"]
    assert types.count("message_start") == types.count("message_delta") == 1
    assert types.count("ping") == (1 if "content_block_start" in types else 0)
    open_index: int | None = None
    opened = 0
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_index is None
            assert event["index"] == opened
            open_index, opened = opened, opened + 1
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_index
            open_index = None
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_index
    assert open_index is None
    assert len(result.body["content"]) == opened
    usage = result.body["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert prompt + usage["cache_creation_input_tokens"] in (0, 10)


CHECKS = {"chat": check_chat, "responses": check_responses, "messages": check_messages}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("strict", [False, True])
def test_every_stream_ends_once_with_everything_closed(
    streams: Streams, id_streams: Streams, dialect: str, strict: bool
) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        sides = [(streams, None), (id_streams, id_streams.tokenizer.encode)]
        side, encode = sides[seed % 2]
        run = replace(random_run(rng, encode), dialect=dialect)
        result = side.run(run, side.processor(run, strict=strict))
        stopped = result.error is not None
        assert not stopped or "stream processor has finished" in result.error  # a stop sequence
        assert result.finished
        CHECKS[dialect](result)
