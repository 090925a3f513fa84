"""Faults of a source on demand, chosen by the header `x-dsinfer-fault` or an option.

Each fault is what a real engine or a real model can do wrong. Those of `wire.py` are faults of a
server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from dsinfer_jax.recipe import (
    InferenceChunk,
    InferenceFinishReason,
    PromptUsage,
    SpecialToken,
    Tokenizer,
)
from dsinfer_jax.server.errors import RequestError
from dsinfer_jax.server.source import SourceError

SOURCE_FAULTS = {
    "half-character": "one byte of a character of several bytes in the middle of the output",
    "missing-think-end": "thinking that does not end",
    "truncated-tools": "a block of tool calls that ends in the middle of a value",
    "stall": "no more output after half of it, for so many seconds (stall:30)",
    "early-end": "half of the output, then nothing, not even a finish",
    "duplicate-finish": "a finish, more output, and another finish",
    "empty": "a finish without any output",
    "lost-cache": "a prefix that was there is computed again",
    "error": "a failure after half of the output",
    "status-429": "too many requests, with retry-after",
    "status-503": "out of order, with retry-after",
}
WIRE_FAULTS = {
    "wire-half-character": "an event whose bytes are not UTF-8",
    "wire-early-end": "a stream that ends after its first events",
    "wire-duplicate-finish": "the last events twice",
}
FAULTS = {**SOURCE_FAULTS, **WIRE_FAULTS}
STALL_SECONDS = 3_600.0
RETRY_AFTER = 1.0
LONE_BYTE = b"\xe4"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and its number, if it has one."""

    name: str
    number: float | None = None


def read_fault(text: str) -> Fault | None:
    """The fault that `name` or `name:number` asks for; RequestError 400 for an unknown one."""
    name, _, number = text.strip().partition(":")
    if not name:
        return None
    if name not in FAULTS:
        raise RequestError(400, f"The fault is '{name}'; it must be one of {', '.join(FAULTS)}.")
    try:
        return Fault(name, float(number) if number else None)
    except ValueError:
        raise RequestError(400, f"The number of the fault is '{number}'.") from None


def refuse(fault: Fault | None) -> None:
    """Raise what a source raises before it does anything."""
    if fault is not None and fault.name.startswith("status-"):
        status = int(fault.name.removeprefix("status-"))
        reason = "The mock is too busy." if status == 429 else "The mock is out of order."
        after = RETRY_AFTER if fault.number is None else fault.number
        raise SourceError(reason, status, after)


def spoil_ids(fault: Fault | None, ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """The output with the fault in it."""
    match fault.name if fault else None:
        case "half-character":
            lone = next(id for id, data in tokenizer.token_bytes.items() if data == LONE_BYTE)
            return [*ids[:-2], lone, *ids[-2:]]
        case "missing-think-end":
            end = tokenizer.added_token_id(SpecialToken.ThinkingEnd.default_str())
            return [id for id in ids if id != end]
        case "truncated-tools":
            marker = tokenizer.added_token_id(SpecialToken.Dsml.default_str())
            places = [place for place, id in enumerate(ids) if id == marker]
            # the last three markers close a value, its call and the block
            return ids[: places[-3] - 2] if len(places) > 5 else ids
        case "empty":
            return []
    return ids


async def spoil_chunks(
    fault: Fault | None, chunks: AsyncGenerator[InferenceChunk, None], total: int
) -> AsyncGenerator[InferenceChunk, None]:
    """The chunks with the fault among them; `total` is the number of output tokens to come."""
    name = fault.name if fault else None
    sent = 0
    async for chunk in chunks:
        if chunk.kind == "ready" and name == "lost-cache" and chunk.prompt_usage is not None:
            usage = PromptUsage(prompt_tokens=chunk.prompt_usage.prompt_tokens)
            chunk = InferenceChunk.ready(prompt_usage=usage)
        yield chunk
        sent += len(chunk.token_ids or [])
        if sent * 2 >= total and chunk.kind == "tokens":
            if name == "stall":
                assert fault is not None
                await asyncio.sleep(STALL_SECONDS if fault.number is None else fault.number)
                name = None
            elif name == "early-end":
                return
            elif name == "error":
                raise SourceError("The mock failed in the middle of its answer.")
    if name == "duplicate-finish":
        yield InferenceChunk.tokens([0])
        yield InferenceChunk.finish(InferenceFinishReason.Length)
