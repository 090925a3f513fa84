"""No text of a request can become a control token (R: special-token injection).

A control spelling is put somewhere into a random request. The control ids of its prompt must be
those of the same request with harmless letters in that place, one by one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from request_maker import RequestMaker
from small_tokenizer import FIRST_CONTROL_ID, small_tokenizer_json

from dsinfer_jax.recipe import (
    ChatCompletionRequest,
    ConversionError,
    ConversionOptions,
    DeepseekV4Encoding,
    DeepseekV41Encoding,
    MessagesRequest,
    ModelVersion,
    ResponsesRequest,
    Tokenizer,
)
from dsinfer_jax.recipe.special_tokens import DEFAULT_SPELLINGS

INSERTIONS = 10_000
HARMLESS = "zz"
READERS = {
    "chat": ChatCompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
}
# Values of these keys are names of the protocol, not text.
FIXED_KEYS = {"role", "type", "model", "effort", "summary", "tool_choice", "verbosity", "detail"}


def string_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Container and key of every string that a user may write, keys of objects included."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(items):
        if isinstance(child, str):
            if key not in FIXED_KEYS:
                yield value, key
        elif isinstance(child, dict | list):
            yield from string_places(child)


def with_insertion(request: Any, place: int, at: float, text: str) -> Any:
    """A copy with ``text`` put into one of its strings."""
    changed = copy.deepcopy(request)
    container, key = list(string_places(changed))[place]
    old = container[key]
    cut = int(at * len(old))
    container[key] = old[:cut] + text + old[cut:]
    return changed


class Prompts:
    """Control ids of the prompts of requests, or ``None`` for a request that is refused."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_str(small_tokenizer_json())
        self.v4 = DeepseekV4Encoding().with_tokenizer(self.tokenizer)
        self.v41 = DeepseekV41Encoding().with_tokenizer(self.tokenizer)
        self.options = ConversionOptions()

    def control_ids(self, dialect: str, request: Any) -> list[int] | None:
        try:
            converted = READERS[dialect](json.dumps(request)).convert(self.options)
        except (ConversionError, ValueError):
            return None
        is_v4 = converted.model_version is ModelVersion.DeepseekV4Pro
        ids = (self.v4 if is_v4 else self.v41).encode(converted.conversation)
        return [number for number in ids if number >= FIRST_CONTROL_ID]


def test_no_text_becomes_a_control_token() -> None:
    prompts = Prompts()
    random = Random(7)
    tried = encoded = 0
    while tried < INSERTIONS:
        maker = RequestMaker(random)
        dialect = maker.pick(tuple(READERS))
        request = getattr(maker, dialect)()
        places = list(string_places(request))
        for _ in range(min(10, len(places))):
            place, at = random.randrange(len(places)), random.random()
            spelling = random.choice(DEFAULT_SPELLINGS)
            tried += 1
            harmless = with_insertion(request, place, at, HARMLESS)
            harmful = with_insertion(request, place, at, spelling)
            got = prompts.control_ids(dialect, harmful)
            if got is None:  # the spelling is not allowed there at all
                continue
            encoded += 1
            expected = prompts.control_ids(dialect, harmless)
            assert got == expected, (spelling, json.dumps(harmful, ensure_ascii=False))
    assert encoded > INSERTIONS / 3
