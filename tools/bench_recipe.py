"""Speed of the protocol layer beside the official package, in one process.

    python tools/bench_recipe.py [--tokenizer FILE] [--text FILE] [--repeats N] [--only NAME]

Requests to prompts, and with a tokenizer conversations to ids: of made text, which repeats words
more than real text does, or of a file. The way out is measured by
``bench_recipe_streaming.py``. See ``side_by_side.py`` for what is printed.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from recipe_requests import agent_request, mixed_text, small_request
from side_by_side import Comparison, report

Work = Callable[[], Any]


def request_measurements(official: ModuleType, ours: ModuleType) -> Iterator[Comparison]:
    """Bytes of a request to the text of its prompt."""
    for name, body in (("small", small_request()), ("agent", agent_request())):
        yield Comparison(
            f"{name} request to prompt",
            "requests",
            1,
            _to_prompt(ours, body),
            _to_prompt(official, body),
            time.process_time,
        )


def _to_prompt(package: Any, body: bytes) -> Work:
    options = package.ConversionOptions()
    encoding = package.DeepseekV41Encoding()

    def work() -> str:
        request = package.ChatCompletionRequest(body).convert(options)
        return encoding.render_conversation(request.conversation).prompt

    return work


def encode_measurements(
    official: ModuleType, ours: ModuleType, tokenizer: str, text: str
) -> Iterator[Comparison]:
    """Conversations to ids: cold (nothing remembered), and the next turn of a known one."""
    for messages in (1, 40):
        length = -(-len(text) // messages)
        texts = [text[start : start + length] for start in range(0, len(text), length)]
        size = sum(len(text.encode()) for text in texts) / 1e3
        works = []
        for package in (official, ours):
            reader = package.Tokenizer.from_str(tokenizer)
            works.append(_encode(package, reader, texts))
        (official_cold, official_next), (our_cold, our_next) = works
        yield Comparison(f"encode cold, messages: {messages}", "kB", size, our_cold, official_cold)
        yield Comparison(
            f"encode the next turn, messages: {messages}", "turns", 1, our_next, official_next
        )


def _encode(package: Any, tokenizer: Any, texts: list[str]) -> tuple[Work, Work]:
    encoding = package.DeepseekV41Encoding().with_tokenizer(tokenizer)
    messages = [package.UserMessage(texts[0])]
    for position, text in enumerate(texts[1:]):
        kind = package.UserMessage if position % 2 else package.AssistantMessage
        messages.append(kind(text))
    conversation = package.Conversation(messages)
    turns = 0

    def cold() -> Any:
        forget = getattr(getattr(tokenizer, "_plain", None), "forget", None)
        if forget is not None:
            forget()
        return encoding.encode(conversation)

    def next_turn() -> Any:
        nonlocal turns
        turns += 1
        question = package.UserMessage(f"And what about point {turns}?")
        answer = package.AssistantMessage("It is done.")
        return encoding.encode(package.Conversation([*messages, answer, question]))

    return cold, next_turn


def main(arguments: list[str] | None = None) -> int:
    """Print every measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, may be gzipped")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one turn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--text", type=Path, help="text of the conversations to encode")
    parser.add_argument("--characters", type=int, default=400_000, help="at most so much of it")
    parser.add_argument("--only", default="", help="measurements whose name holds this")
    options = parser.parse_args(arguments)
    import deepseek_recipe as official

    import dsinfer_jax.recipe as ours

    comparisons = list(request_measurements(official, ours))
    if options.tokenizer is not None:
        raw = options.tokenizer.read_bytes()
        tokenizer = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
        if options.text is None:
            text = mixed_text(Random(1), options.characters)
        else:
            text = options.text.read_text(encoding="utf-8")[: options.characters]
        comparisons += encode_measurements(official, ours, tokenizer, text)
    wanted = [comparison for comparison in comparisons if options.only in comparison.name]
    report(wanted, repeats=options.repeats, seconds=options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
