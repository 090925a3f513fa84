"""Requests of the shape that command-line agents send, several turns each."""

from __future__ import annotations

from typing import Any

from events import ends_well, errors_of, read_events
from live import MODEL, Live

CODING_TOOL = {
    "name": "Bash",
    "description": "Runs a command",
    "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
    },
    "cache_control": {"type": "ephemeral"},
}


def messages_agent_body(turns: list[Any], nonce: str) -> dict[str, Any]:
    """System as blocks, the first a billing line that changes; caching marks everywhere."""
    mark = {"cache_control": {"type": "ephemeral"}}
    return {
        "model": MODEL,
        "max_tokens": 32_000,
        "stream": True,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: {nonce}"},
            {"type": "text", "text": "You are an agent. " * 60, **mark},
        ],
        "messages": turns,
        "tools": [CODING_TOOL],
        "metadata": {"user_id": "user_1"},
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
    }


def test_a_messages_agent(mock: Live) -> None:
    headers = {"anthropic_version": "2023-06-01", "anthropic_beta": "a,b"}
    path = "/v1/messages?beta=true"
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "List files with Bash."}]}
    ]
    body = messages_agent_body(turns, "one")
    counted = mock.post("/v1/messages/count_tokens?beta=true", body, **headers)
    assert counted.status == 200
    events = read_events(mock.post(path, body, **headers).body)
    assert ends_well("messages", events)
    datas = [event.json() for event in events]
    starts = [data["content_block"] for data in datas if data["type"] == "content_block_start"]
    assert [block["type"] for block in starts] == ["thinking", "tool_use"]
    usage = datas[0]["message"]["usage"]
    assert (
        usage["input_tokens"] + usage["cache_read_input_tokens"] == counted.json()["input_tokens"]
    )
    call = {**starts[1], "input": {"command": "ls"}}
    thinking = {"type": "thinking", "thinking": "…", "signature": "s"}
    result = {
        "type": "tool_result",
        "tool_use_id": call["id"],
        "content": "a.py",
        "is_error": False,
    }
    turns += [
        {"role": "assistant", "content": [thinking, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
    ]
    second = read_events(mock.post(path, messages_agent_body(turns, "two"), **headers).body)
    assert ends_well("messages", second)
    cached = second[0].json()["message"]["usage"]["cache_read_input_tokens"]
    assert cached > 300  # the billing line is no part of the prompt


def responses_agent_body(items: list[Any], **members: Any) -> dict[str, Any]:
    """Tools of all kinds; nothing stored; reasoning comes back encrypted."""
    function = {
        "type": "function",
        "name": "shell",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "array", "items": {"type": "string"}}},
            "required": ["command"],
        },
    }
    read = {"type": "function", "name": "read", "parameters": {"type": "object"}}
    return {
        "model": MODEL,
        "instructions": "You are an agent.",
        "input": items,
        "tools": [
            function,
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
            {"type": "namespace", "name": "fs", "description": "Files", "tools": [read]},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "abc",
        **members,
    }


def user_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def ask_responses(mock: Live, items: list[Any]) -> list[Any]:
    """The output items of a streamed answer."""
    events = read_events(mock.post("/v1/responses", responses_agent_body(items)).body)
    assert not errors_of("responses", events)
    assert ends_well("responses", events)
    return events[-1].json()["response"]["output"]


def test_a_responses_agent(mock: Live) -> None:
    items = [user_item("Use shell to list files.")]
    output = ask_responses(mock, items)
    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    items += output
    items.append(
        {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "a.py"}
    )
    answer = ask_responses(mock, items)
    assert answer[-1]["content"][0]["text"] == "a.py"


def test_custom_tools_and_namespaces_come_back_as_they_were_declared(mock: Live) -> None:
    patch = ask_responses(mock, [user_item("Please apply_patch.")])[-1]
    assert (patch["type"], patch["name"]) == ("custom_tool_call", "apply_patch")
    assert patch["input"]
    read = ask_responses(mock, [user_item("Call fs::read.")])[-1]
    assert (read["type"], read["name"], read["namespace"]) == ("function_call", "read", "fs")
    items = [user_item("Call fs::read."), read]
    items.append({"type": "function_call_output", "call_id": read["call_id"], "output": "text"})
    assert ask_responses(mock, items)[-1]["type"] == "message"
