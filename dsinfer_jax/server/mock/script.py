"""Scripted answers: a file with one JSON object a line, played in order.

{"ready": {"prompt_tokens": 12, "cached_tokens": 6}}
{"text": "<think>"}          text; spellings of control tokens become control tokens
{"ids": [104, 105]}
{"wait": 0.5}                seconds
{"error": "no memory", "status": 503, "retry_after": 2}
{"finish": "stop"}           or length, content_filter
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from dsinfer_jax.recipe import InferenceChunk, InferenceFinishReason, PromptUsage, Tokenizer
from dsinfer_jax.server.source import InferenceJob, SourceError

KEYS = ("ready", "text", "ids", "wait", "error", "finish")
FINISH = {
    "stop": InferenceFinishReason.Stop,
    "length": InferenceFinishReason.Length,
    "content_filter": InferenceFinishReason.ContentFilter,
}


class Script:
    """The lines of a script, checked."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines

    @staticmethod
    def read(path: Path) -> Script:
        """Read a file; ValueError names the line that cannot be played."""
        lines = []
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if text.strip():
                lines.append(_checked(text, f"line {number} of {path}"))
        return Script(lines)

    async def play(
        self, job: InferenceJob, tokenizer: Tokenizer
    ) -> AsyncGenerator[InferenceChunk, None]:
        """The chunks; raises SourceError where the script says so."""
        for line in self._lines:
            if "wait" in line:
                await asyncio.sleep(line["wait"])
            elif "error" in line:
                raise SourceError(line["error"], line.get("status", 500), line.get("retry_after"))
            else:
                yield _chunk(line, tokenizer)


def _checked(text: str, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(line, dict) or sum(key in line for key in KEYS) != 1:
        raise ValueError(f"{where} must be an object with one of {', '.join(KEYS)}")
    if "finish" in line and line["finish"] not in FINISH:
        raise ValueError(f"{where}: finish must be one of {', '.join(FINISH)}")
    return line


def _chunk(line: dict[str, Any], tokenizer: Tokenizer) -> InferenceChunk:
    if "ready" in line:
        usage = PromptUsage(
            prompt_tokens=line["ready"].get("prompt_tokens", 0),
            prompt_cache_hit_tokens=line["ready"].get("cached_tokens", 0),
        )
        return InferenceChunk.ready(prompt_usage=usage)
    if "finish" in line:
        return InferenceChunk.finish(FINISH[line["finish"]])
    return InferenceChunk.tokens(line["ids"] if "ids" in line else tokenizer.encode(line["text"]))
