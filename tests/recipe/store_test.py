"""Stored responses: conversations go on, old ones are forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsinfer_jax.recipe import ConversionError, ConversionOptions, ResponsesRequest
from dsinfer_jax.recipe.store import (
    InMemoryResponseStore,
    ResponseStore,
    SqliteResponseStore,
    StoredResponse,
    remember,
    with_history,
)

Make = Callable[[float], ResponseStore]
MODEL = "DeepSeek-V4.1-Flash"


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Make:
    if request.param == "memory":
        return lambda time_to_live: InMemoryResponseStore(time_to_live, clock=clock)
    path = str(tmp_path / "responses.db")
    return lambda time_to_live: SqliteResponseStore(path, time_to_live, clock=clock)


def answer(id: str, *output: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "output": list(output)}


def message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "m", "status": "completed", "role": "assistant",
            "content": [part]}  # fmt: skip


def test_a_conversation_goes_on(make: Make) -> None:
    store = make(100.0)
    first = {"model": MODEL, "input": "one"}
    call = {"type": "function_call", "id": "fc", "status": "completed", "call_id": "c",
            "name": "f", "arguments": "{}"}  # fmt: skip
    thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x-0",
               "content": [{"type": "reasoning_text", "text": "hm"}]}  # fmt: skip
    remember(first, answer("r1", thought, message("first"), call), store)
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    second = {"model": MODEL, "input": [output], "previous_response_id": "r1"}
    expanded = with_history(second, store)
    conversation = ResponsesRequest(expanded).convert(ConversionOptions()).conversation
    assert [m.role for m in conversation.messages] == ["user", "assistant", "tool"]
    assert conversation.messages[1].content == "first"
    assert conversation.messages[1].reasoning_content == "hm"
    remember(second, answer("r2", message("second")), store)
    third = with_history({"model": MODEL, "input": "x", "previous_response_id": "r2"}, store)
    contents = [
        m.content
        for m in ResponsesRequest(third).convert(ConversionOptions()).conversation.messages
    ]
    assert contents == ["one", "first", "done", "second", "x"]
    assert second["input"] == [output]  # the request itself is left as it was


def test_unknown_and_expired_responses_are_refused(make: Make, clock: Clock) -> None:
    store = make(100.0)
    body = {"model": MODEL, "input": "x", "previous_response_id": "r1"}
    with pytest.raises(ConversionError, match="Previous response with id 'r1' not found") as caught:
        with_history(body, store)
    assert caught.value.status_code == 400
    remember({"model": MODEL, "input": "one"}, answer("r1", message("a")), store)
    clock.now += 90
    with_history(body, store)  # renews
    clock.now += 90
    with_history(body, store)
    clock.now += 101
    with pytest.raises(ConversionError):
        with_history(body, store)


def test_a_broken_chain_is_refused(make: Make) -> None:
    store = make(100.0)
    store.save(StoredResponse("r2", "r1", ()))
    with pytest.raises(ConversionError, match="'r2' not found"):
        with_history({"model": MODEL, "previous_response_id": "r2"}, store)


def test_delete_replace_and_do_not_store(make: Make) -> None:
    store = make(100.0)
    remember({"model": MODEL, "input": "x", "store": False}, answer("r1"), store)
    assert store.load("r1") is None
    store.save(StoredResponse("r1", None, ({"type": "zz", "text": "日本"},)))
    store.save(StoredResponse("r1", None, ({"type": "zz", "text": "é"},)))
    loaded = store.load("r1")
    assert loaded is not None
    assert loaded.items == ({"type": "zz", "text": "é"},)
    assert store.delete("r1")
    assert not store.delete("r1")


def test_the_file_outlives_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    first = SqliteResponseStore(path)
    first.save(StoredResponse("r", None, ()))
    first.close()
    assert SqliteResponseStore(path).load("r") == StoredResponse("r", None, ())


def test_memory_is_bounded() -> None:
    store = InMemoryResponseStore(maximum=3)
    for number in range(10):
        store.save(StoredResponse(str(number), None, ()))
    assert [store.load(str(n)) is not None for n in range(10)] == [False] * 7 + [True] * 3
