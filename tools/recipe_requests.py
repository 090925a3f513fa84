"""Requests for the benchmarks of the protocol layer: seeded, made of words, code and Chinese."""

from __future__ import annotations

import json
from random import Random
from typing import Any

SENTENCE = (
    "the model reads a long list of files and then answers with one short summary of what changed "
    "between two versions while keeping every detail that matters for the next engineer who looks"
)
WORDS = tuple(SENTENCE.split())
CODE = (
    "def area(width: int, height: int) -> int:\n    return width * height\n",
    "for (let i = 0; i < items.length; i++) { total += items[i].price; }\n",
    'SELECT name, count(*) FROM visits WHERE day > "2024-01-01" GROUP BY name;\n',
)
CHINESE = "今天的天气很好，我们一起去公园散步，看看湖边的花和树。"


def mixed_text(random: Random, characters: int) -> str:
    """About ``characters`` of English (60 %), code (20 %) and Chinese (20 %)."""
    pieces: list[str] = []
    length = 0
    while length < characters:
        kind = random.random()
        if kind < 0.6:
            piece = " ".join(random.choice(WORDS) for _ in range(random.randint(8, 20))) + ". "
        elif kind < 0.8:
            piece = random.choice(CODE)
        else:
            start = random.randint(0, 10)
            piece = CHINESE[start : start + random.randint(6, 16)] + "。"
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)


def small_request() -> bytes:
    """A chat request with two short messages (about 400 bytes)."""
    random = Random(1)
    return _encode(
        {
            "model": "DeepSeek-V4.1-Flash",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": mixed_text(random, 180)},
            ],
            "temperature": 0.7,
            "max_tokens": 1024,
            "stream": True,
        }
    )


def agent_request() -> bytes:
    """A chat request of an agent: 31 messages, 8 tools, about 28 kB."""
    random = Random(2)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": mixed_text(random, 2500)},
        {"role": "user", "content": mixed_text(random, 600)},
    ]
    number = 0
    while len(messages) < 30:
        number += 1
        arguments = {"path": f"src/file_{number}.py", "lines": [number, number + 40], "deep": True}
        call = {
            "id": f"call_{number:02}_abc",
            "type": "function",
            "function": {"name": "tool_1", "arguments": json.dumps(arguments)},
        }
        messages.append(
            {
                "role": "assistant",
                "content": mixed_text(random, 120),
                "reasoning_content": mixed_text(random, 200),
                "tool_calls": [call],
            }
        )
        result = mixed_text(random, 700)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    messages.append({"role": "user", "content": mixed_text(random, 300)})
    tools = [_tool(random, number) for number in range(8)]
    body = {"model": "DeepSeek-V4.1-Flash", "messages": messages, "tools": tools, "stream": True}
    return _encode(body)


def _tool(random: Random, number: int) -> dict[str, Any]:
    properties = {
        f"argument_{index}": {
            "type": random.choice(("string", "integer", "boolean")),
            "description": mixed_text(random, 60),
        }
        for index in range(5)
    }
    properties["options"] = {
        "type": "object",
        "properties": {"depth": {"type": "integer", "minimum": 0}, "tag": {"type": "string"}},
        "required": ["depth"],
        "additionalProperties": False,
    }
    parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
    function = {
        "name": f"tool_{number}",
        "description": mixed_text(random, 200),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _encode(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()
