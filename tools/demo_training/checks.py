"""Is an answer right? Answers are read as a server reads them: with the recipe's own parser."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from demo_training.render import control_id, converted
from demo_training.tasks.task import Call, Item
from dsinfer_jax.recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    InferenceChunk,
    InferenceFinishReason,
    SpecialToken,
    StreamProcessor,
    Tokenizer,
)

# Line breaks that the template puts before calls are dropped where there is no content.
_HARMLESS = {"leading_newline"}
_CALLS_END = "</｜DSML｜ calls>".encode()
_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "array": list}


@dataclass(frozen=True)
class Parsed:
    """An answer as a client gets it.

    Attributes:
        arguments: of the calls, raw.
        ended: the model wrote its end token, and nothing after it.
        clean: the parser dropped no text and met nothing broken; markup of calls is closed.
    """

    thinking: str | None
    content: str
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    ended: bool
    clean: bool


@dataclass(frozen=True)
class Score:
    """Attributes:
    right: what a user would call right: the content to the letter; for a schema the same values;
        for calls the same tools with the same arguments in the same order.
    valid: well formed, right or not: ended; calls parse, are declared and fit their parameters;
        JSON parses and fits its schema.
    """

    right: bool
    valid: bool


def parse(item: Item, answer_ids: Sequence[int], tokenizer: Tokenizer) -> Parsed:
    """What the token ids of an answer say, with or without an end token."""
    request = converted(item)
    end = control_id(SpecialToken.Eos, tokenizer)
    ids = list(answer_ids)
    ended = end in ids and ids.index(end) == len(ids) - 1
    ids = ids[: ids.index(end)] if end in ids else ids
    generator = ChatCompletionRequest.chunk_generator(request, "answer", "demo")
    processor = StreamProcessor(generator, request.parsing_options, tokenizer)
    response = ChatCompletionResponse("answer", "demo", 0, 0, 0)
    reason = InferenceFinishReason.Stop if ended else InferenceFinishReason.Length
    for chunk in (InferenceChunk.tokens(ids), InferenceChunk.finish(reason)):
        for event in processor.push(chunk):
            response.accumulate(event)
    message = json.loads(response.to_json())["choices"][0]["message"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    dropped = [place for place, count in processor.report.dropped.items() if count]
    text = b"".join(tokenizer.token_bytes.get(token, b"") for token in ids)
    clean = set(dropped) <= _HARMLESS and not any(processor.report.broken.values())
    return Parsed(
        message.get("reasoning_content"),
        message.get("content") or "",
        tuple(function["name"] for function in functions),
        tuple(function["arguments"] for function in functions),
        ended,
        clean and (not functions or text.endswith(_CALLS_END)),
    )


def score(item: Item, answer_ids: Sequence[int], tokenizer: Tokenizer) -> Score:
    """The score of an answer; thinking is read but not judged."""
    return score_parsed(item, parse(item, answer_ids, tokenizer))


def score_parsed(item: Item, parsed: Parsed) -> Score:
    """The score of an answer that was parsed elsewhere."""
    if parsed.names or item.answer.calls:
        return _score_calls(item, parsed)
    valid = parsed.ended and parsed.clean
    if item.schema is None:
        return Score(valid and parsed.content == item.answer.content, valid)
    value = _json(parsed.content)
    valid = valid and fits(value, item.schema)
    return Score(valid and _same(value, _json(item.answer.content)), valid)


def _score_calls(item: Item, parsed: Parsed) -> Score:
    schemas = {
        tool["function"]["name"]: tool["function"]["parameters"]
        for tool in item.body.get("tools", ())
    }
    arguments = [_json(text) for text in parsed.arguments]
    valid = parsed.ended and parsed.clean and bool(parsed.names)
    valid = valid and all(
        name in schemas and fits(values, schemas[name])
        for name, values in zip(parsed.names, arguments)
    )
    wanted = item.answer.calls
    called = tuple(Call(*call) for call in zip(parsed.names, arguments))
    right = valid and called == wanted and parsed.content == item.answer.content
    return Score(right, valid)


_NOT_JSON = object()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _same(left: Any, right: Any) -> bool:
    """Equal, and of equal types: 1 is not true."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is valid; `schema` uses no more than the tasks' schemas do."""
    if schema["type"] != "object":
        kind = _TYPES[schema["type"]]
        if isinstance(value, list) and kind is list:
            return all(fits(one, schema["items"]) for one in value)
        return type(value) is kind  # a bool is no integer
    if not isinstance(value, dict):
        return False
    properties = schema["properties"]
    closed = schema.get("additionalProperties", True) is False
    return (
        all(name in value for name in schema["required"])
        and not (closed and value.keys() - properties.keys())
        and all(fits(value[name], properties[name]) for name in properties.keys() & value.keys())
    )
