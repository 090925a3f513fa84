"""Streaming of both packages side by side: output pieces or ids in, JSON of every event out.

    python tools/bench_recipe_streaming.py [TOKENIZER.json[.gz]]

Ids need the tokenizer file. Requests and prompts are measured by `bench_recipe.py`.
"""

from __future__ import annotations

import argparse
import gzip
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from side_by_side import Comparison, report

DSML = "｜DSML｜"
TOOL = {"name": "write", "description": "d", "parameters": {"type": "object", "properties": {}}}


def text_pieces(count: int = 4000, seed: int = 0) -> list[str]:
    """English words (60 %), short code (20 %) and Chinese (20 %), a token's length each."""
    rng = random.Random(seed)
    words = [
        "the",
        "model",
        "reads",
        "every",
        "line",
        "of",
        "input",
        "and",
        "writes",
        "one",
        "answer",
        "about",
        "it",
    ]
    code = ["def", " f", "(x", "):\n", "    ", "return", " x", " + ", "1\n", "[0]", "{", "}", "\n"]
    chinese = ["世界", "模型", "的", "是", "输出", "，", "。", "文本"]
    pieces = ["I think", "</think>"]
    for _ in range(count):
        kind = rng.random()
        pieces.append(
            " " + rng.choice(words) if kind < 0.6 else rng.choice(code if kind < 0.8 else chinese)
        )
    return pieces


def call_text(name: str, argument: str) -> str:
    return (
        f'<{DSML} invoke name="{name}">\n<{DSML} parameter name="text" string="true">{argument}'
        f"</{DSML} parameter>\n</{DSML} invoke>\n"
    )


def calls_text(calls: list[str]) -> str:
    return f"plan</think>\n\n<{DSML} calls>\n{''.join(calls)}</{DSML} calls>"


def cut(text: str, length: int = 4) -> list[str]:
    return [text[start : start + length] for start in range(0, len(text), length)]


def request_body(dialect: str, tools: bool) -> dict[str, Any]:
    """A streamed request of the dialect."""
    body: dict[str, Any] = {"model": "DeepSeek-V4.1-Flash", "stream": True}
    if dialect == "responses":
        body["input"] = "x"
        declared: Any = [{"type": "function", **TOOL}]
    else:
        body["messages"] = [{"role": "user", "content": "x"}]
        declared = [{"type": "function", "function": TOOL}]
    if dialect == "messages":
        body["max_tokens"] = 1000
        body["thinking"] = {"type": "enabled"}
        declared = [{"name": "write", "description": "d", "input_schema": TOOL["parameters"]}]
    if tools:
        body["tools"] = declared
    return body


def streamer(package: Any, dialect: str, tools: bool, tokenizer: Any) -> Callable[..., int]:
    """A function that streams pieces (text or lists of ids) and returns the size of the JSON."""
    request_type = {
        "chat": package.ChatCompletionRequest,
        "responses": package.ResponsesRequest,
        "messages": package.MessagesRequest,
    }[dialect]
    converted = request_type(request_body(dialect, tools)).convert(package.ConversionOptions())
    chunk, stop = package.InferenceChunk, package.InferenceFinishReason.Stop

    def stream_text(pieces: list[str]) -> int:
        generator = request_type.chunk_generator(converted, "id", "model")
        push = package.StreamProcessor(generator, converted.parsing_options).push
        size = sum(len(event.to_json()) for event in push(chunk.ready()))
        for piece in pieces:
            for event in push(chunk.text(piece, 1)):
                size += len(event.to_json())
        return size + sum(len(event.to_json()) for event in push(chunk.finish(stop)))

    def stream_ids(pushes: list[list[int]]) -> int:
        generator = request_type.chunk_generator(converted, "id", "model")
        push = package.StreamProcessor(generator, converted.parsing_options, tokenizer).push
        size = sum(len(event.to_json()) for event in push(chunk.ready()))
        for ids in pushes:
            for event in push(chunk.tokens(ids)):
                size += len(event.to_json())
        return size + sum(len(event.to_json()) for event in push(chunk.finish(stop)))

    return stream_text if tokenizer is None else stream_ids


def accumulator(package: Any, dialect: str) -> Callable[[list[str]], int]:
    """A function that streams text pieces into one body and returns the size of its JSON."""
    request_type, response_type = {
        "chat": (package.ChatCompletionRequest, package.ChatCompletionResponse),
        "responses": (package.ResponsesRequest, package.ResponsesResponse),
        "messages": (package.MessagesRequest, package.MessagesResponse),
    }[dialect]
    converted = request_type(request_body(dialect, False)).convert(package.ConversionOptions())
    chunk, stop = package.InferenceChunk, package.InferenceFinishReason.Stop

    def accumulate_text(pieces: list[str]) -> int:
        generator = request_type.chunk_generator(converted, "id", "model")
        push = package.StreamProcessor(generator, converted.parsing_options).push
        response = response_type("id", "model", 0, 0, 0)
        for piece in pieces:
            for event in push(chunk.text(piece, 1)):
                response.accumulate(event)
        for event in push(chunk.finish(stop)):
            response.accumulate(event)
        return len(response.to_json())

    return accumulate_text


def comparisons(ours: Any, official: Any, tokenizer_json: str | None) -> Iterator[Comparison]:
    """The table of recipe.md 8.3 for both packages; ids only with a tokenizer."""
    words = random.Random(1).choices(["word ", "line\n", '"quoted" ', "世界 "], k=6000)
    prose = text_pieces()
    large = cut(calls_text([call_text("write", "".join(words))]))
    small = cut(calls_text([call_text("write", "".join(words[:12])) for _ in range(150)]))
    texts = [("text pieces", prose, False), ("text pieces, tools declared", prose, True)]
    texts += [("tool argument of 30 kB, text", large, True), ("150 small calls, text", small, True)]
    for name, pieces, tools in texts:
        for dialect in ("chat", "responses", "messages"):
            sides = [streamer(package, dialect, tools, None) for package in (ours, official)]
            yield _comparison(f"{name}, {dialect}", "pieces", pieces, len(pieces), sides)
    for dialect in ("chat", "responses", "messages"):
        sides = [accumulator(package, dialect) for package in (ours, official)]
        yield _comparison(f"text pieces to a body, {dialect}", "pieces", prose, len(prose), sides)
    if tokenizer_json is None:
        return
    tokenizers = [package.Tokenizer.from_str(tokenizer_json) for package in (ours, official)]
    encode = tokenizers[0].encode
    prose_ids, large_ids = encode("".join(prose)), encode("".join(large))
    small_ids = encode("".join(small))
    for name, ids, step in [
        ("ids, 1 per push", prose_ids, 1),
        ("ids, 8 per push", prose_ids, 8),
        ("tool argument of 30 kB, ids", large_ids, 1),
        ("150 small calls, ids", small_ids, 1),
    ]:
        pushes = [ids[start : start + step] for start in range(0, len(ids), step)]
        for dialect in ("chat", "responses", "messages"):
            sides = [
                streamer(package, dialect, "ids," not in name, tokenizer)
                for package, tokenizer in zip((ours, official), tokenizers)
            ]
            yield _comparison(f"{name}, {dialect}", "ids", pushes, len(ids), sides)


def _comparison(
    name: str, unit: str, pieces: list[Any], units: int, sides: list[Callable[[Any], int]]
) -> Comparison:
    """The same pieces through both sides, which must write JSON of the same size."""
    ours, official = sides
    if ours(pieces) != official(pieces):
        raise AssertionError(f"{name}: the two packages write JSON of unequal size")
    return Comparison(
        name, unit, units, lambda: ours(pieces), lambda: official(pieces), time.process_time
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", nargs="?", help="tokenizer.json, plain or gzipped")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    arguments = parser.parse_args()
    import deepseek_recipe

    import dsinfer_jax.recipe

    tokenizer_json = None
    if arguments.tokenizer:
        data = Path(arguments.tokenizer).read_bytes()
        if arguments.tokenizer.endswith(".gz"):
            data = gzip.decompress(data)
        tokenizer_json = data.decode()
    report(
        comparisons(dsinfer_jax.recipe, deepseek_recipe, tokenizer_json),
        repeats=arguments.repeats,
        seconds=arguments.seconds,
    )


if __name__ == "__main__":
    main()
