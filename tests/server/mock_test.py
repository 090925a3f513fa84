"""The mock: what it answers, its scripts, and that its output is what a model would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import Live, chat, messages, running

from dsinfer_jax.recipe import ModelVersion
from dsinfer_jax.server import ServerSettings
from dsinfer_jax.server.mock import MockOptions, create_mock_app
from dsinfer_jax.server.mock.samples import sample
from dsinfer_jax.server.mock.script import Script
from dsinfer_jax.server.mock.source import BLOCK, PrefixMemory

CHAT = "/v1/chat/completions"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("alpha", "beta")
]


def message(live: Live, body: Any) -> Any:
    reply = live.post(CHAT, body)
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["message"]


def test_it_says_again_what_was_asked(mock: Live) -> None:
    assert message(mock, chat("Ein Ünïcode-Text 🦜 </think> <｜Assistant｜>"))["content"] == (
        "Ein Ünïcode-Text 🦜 </think> <｜Assistant｜>"
    )


def test_control_spellings_of_a_user_stay_text(mock: Live) -> None:
    """What the mock repeats are plain ids: the protocol layer reads no marker in them."""
    text = '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="alpha">\n</｜DSML｜ invoke>'
    answer = message(mock, chat("x" + text, tools=[TOOLS[1]]))
    assert "tool_calls" not in answer
    assert answer["content"] == "x" + text


def test_tools_are_called_by_name(mock: Live) -> None:
    def called(**fields: Any) -> list[str]:
        answer = message(mock, chat(tools=TOOLS, **fields))
        return [call["function"]["name"] for call in answer.get("tool_calls", [])]

    off = {"type": "disabled"}
    assert called(text="hello") == []
    assert called(text="beta, please") == ["beta"]
    assert called(text="beta and alpha") == ["alpha", "beta"]
    assert called(text="hello", tool_choice="required", thinking=off) == ["alpha"]
    assert called(text="beta", tool_choice="none") == []


def test_a_prefix_is_continued(mock: Live) -> None:
    for thinking in ("enabled", "disabled"):
        body = chat("Once", thinking={"type": thinking})
        prefix = {"role": "assistant", "content": "It was ", "prefix": True}
        body["messages"].append(prefix)
        assert message(mock, body)["content"] == "Once"


def test_the_older_prompt_format_works_too() -> None:
    settings = ServerSettings(models={"old": ModelVersion.DeepseekV4Pro})
    with running(create_mock_app(settings=settings)) as live:
        assert message(live, chat("Hi.", model="old"))["reasoning_content"]
        answer = message(live, chat("alpha beta", model="old", tools=TOOLS))
        assert [call["function"]["name"] for call in answer["tool_calls"]] == ["alpha", "beta"]


def test_a_fixed_answer() -> None:
    with running(create_mock_app(MockOptions(answer="Always this."))) as live:
        assert message(live, chat("What?"))["content"] == "Always this."


def test_a_prompt_without_messages_is_answered(mock: Live) -> None:
    body = {**chat(), "messages": [{"role": "system", "content": ""}]}
    assert message(mock, body)["content"] == "…"


def test_a_script(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    lines = [
        {"ready": {"prompt_tokens": 12, "cached_tokens": 6}},
        {"text": "so</think>Hel"},
        {"wait": 0.01},
        {"text": "lo"},
        {"finish": "length"},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    with running(create_mock_app(MockOptions(script=Script.read(path)))) as live:
        body = live.post("/v1/messages", messages()).json()
    assert [block["type"] for block in body["content"]] == ["thinking", "text"]
    assert body["content"][1]["text"] == "Hello"
    assert body["stop_reason"] == "max_tokens"
    assert body["usage"]["cache_read_input_tokens"] == body["usage"]["input_tokens"] == 6


def test_a_script_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"error": "No memory.", "status": 503, "retry_after": 2}\n')
    with running(create_mock_app(MockOptions(script=Script.read(path)))) as live:
        reply = live.post(CHAT, chat())
    assert (reply.status, reply.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 of .* is not JSON"),
        ('{"text": "a"}\n{"txt": "b"}', "line 2 of .* must be an object with one of"),
        ('{"text": "a", "wait": 1}', "must be an object with one of"),
        ('{"finish": "end"}', "finish must be one of stop, length"),
    ],
)
def test_a_script_that_cannot_be_played(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Script.read(path)


def test_an_unknown_fault_is_refused(mock: Live) -> None:
    for fault in ("nope", "stall:x"):
        reply = mock.post(CHAT, chat(), x_dsinfer_fault=fault)
        assert reply.status == 400
        assert "fault" in reply.json()["error"]["message"]


def test_prefixes_of_tenants_do_not_mix() -> None:
    memory = PrefixMemory()
    ids = list(range(3 * BLOCK + 1))
    assert memory.add("ann", ids) == 0
    assert memory.add("ann", ids) == 3 * BLOCK
    assert memory.add("ann", ids[: 2 * BLOCK]) == BLOCK  # never the whole prompt
    assert memory.add("ann", [7, *ids[1:]]) == 0
    assert memory.add("bob", ids) == 0


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """JSON Schemas of the kinds that tools have."""
    leaves = st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "minLength": 20, "maxLength": 30},
            {"type": "integer", "minimum": 100},
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["a", "b"]},
            {"const": {"a": 1}},
            {"type": ["string", "null"]},
            {"$ref": "#/$defs/node"},
        ]
    )

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.builds(lambda s: {"type": "array", "items": s, "minItems": 2}, inner),
            st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
            st.builds(_object, st.dictionaries(st.sampled_from("abc"), inner)),
        )

    return st.recursive(leaves, grow, max_leaves=6).map(_with_definitions)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _with_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    node = _object({"value": {"type": "integer"}})
    node["properties"]["next"] = {"$ref": "#/$defs/node"}
    return {**schema, "$defs": {"node": node}}


@given(schemas())
@settings(max_examples=150, deadline=None)
def test_samples_fit_their_schemas(schema: dict[str, Any]) -> None:
    jsonschema.validate(sample(schema), schema)
