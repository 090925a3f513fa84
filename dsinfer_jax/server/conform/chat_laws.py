"""Chat Completions: bodies and streams to outcomes, one for each choice; laws of the dialect."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.server.conform.client import Event, Violation
from dsinfer_jax.server.conform.outcome import Call, Outcome, Usage, law

DONE = "[DONE]"


def read_usage(usage: Any) -> Usage:
    """The counts of a usage object."""
    law(isinstance(usage, dict), "the answer has no usage")
    prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
    law(usage["total_tokens"] == prompt + output, f"the total of {usage} is not the sum")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return Usage(prompt, cached, output, reasoning)


def read_body(body: Any) -> list[Outcome]:
    """The choices of a whole response, by index."""
    law(body["object"] == "chat.completion", f"the object is {body['object']!r}")
    usage = read_usage(body.get("usage"))
    outcomes = []
    for place, choice in enumerate(body["choices"]):
        law(choice["index"] == place, f"choice {place} has the index {choice['index']}")
        message = choice["message"]
        calls = [
            Call(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        outcomes.append(
            Outcome(
                id=body["id"],
                reasoning=message.get("reasoning_content") or "",
                text=message.get("content") or "",
                calls=calls,
                finish=choice["finish_reason"],
                usage=usage,
            )
        )
    return outcomes


def read_stream(events: list[Event]) -> list[Outcome]:
    """The choices of a stream, by index."""
    law(bool(events), "the stream is empty")
    outcomes: dict[int, Outcome] = {}
    usage = None
    for event in events[:-1]:
        law(event.data != DONE, f"{DONE} is not the last event")
        chunk = event.json()
        if "error" in chunk:
            raise Violation(f"the stream ended with an error: {chunk['error'].get('message')}")
        law(chunk["object"] == "chat.completion.chunk", f"the object is {chunk['object']!r}")
        for choice in chunk["choices"]:
            _add(outcomes, choice, chunk["id"])
        if chunk.get("usage"):
            law(usage is None, "two chunks have usage")
            usage = read_usage(chunk["usage"])
    _check_end(events[-1], outcomes)
    for outcome in outcomes.values():
        outcome.usage = usage
    return [outcomes[index] for index in sorted(outcomes)]


def _check_end(event: Event, outcomes: dict[int, Outcome]) -> None:
    if event.data == DONE:
        law(bool(outcomes), "the stream has no choices")
        return
    data = event.json()
    if "error" in data:
        raise Violation(f"the stream ended with an error: {data['error'].get('message')}")
    raise Violation(f"the last event is not {DONE}: {event.data[:80]!r}")


def _add(outcomes: dict[int, Outcome], choice: Any, id: str) -> None:
    index, delta = choice["index"], choice["delta"]
    if index not in outcomes:
        law(delta.get("role") == "assistant", f"choice {index} does not begin with its role")
        outcomes[index] = Outcome(id=id)
    outcome = outcomes[index]
    law(outcome.id == id, "chunks of one response have several ids")
    law(outcome.finish is None, f"choice {index} goes on after its finish reason")
    if delta.get("reasoning_content"):
        law(not outcome.text, "reasoning comes after content")
        outcome.reasoning += delta["reasoning_content"]
    outcome.text += delta.get("content") or ""
    for part in delta.get("tool_calls") or []:
        place, function = part["index"], part["function"]
        if place == len(outcome.calls):
            outcome.calls.append(Call(part["id"], function["name"], ""))
        law(place == len(outcome.calls) - 1, f"call {place} goes on after call "
            f"{len(outcome.calls) - 1} has begun")  # fmt: skip
        outcome.calls[place].arguments += function.get("arguments") or ""
    outcome.finish = choice["finish_reason"]
