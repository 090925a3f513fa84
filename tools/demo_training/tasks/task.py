"""What a task is: it draws items, each a request with the answer that is wanted.

Knows Chat Completions bodies; knows no tokens, no prompt markup and no model.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from random import Random
from typing import Any, Protocol, TypeVar

Message = dict[str, Any]
Body = dict[str, Any]
Choice = TypeVar("Choice")

CHINESE_SHARE = 0.15
SYSTEM_SHARE = 0.15
_RESERVED_TENTH = 10

_EFFORTS = (None, None, None, "low", "max")
_SYSTEM = ("You are a helpful assistant.", "You are a small model.", "Answer in short.")
_SYSTEM_CHINESE = ("你是助手。", "请用中文回答。")


class Split(StrEnum):
    """Training never sees the content that is reserved, nor the wordings called new."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Wordings:
    """Templates for one purpose: `seen` in training, `new` only in the held-out split."""

    seen: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class Draw:
    """The random choices of one item.

    Attributes:
        chinese: the language of the item.
        new_wording: templates come from those that training never shows; never in training.
    """

    random: Random
    split: Split
    chinese: bool
    new_wording: bool

    @classmethod
    def of(cls, random: Random, split: Split) -> "Draw":
        """Language and wording first; half of the held-out items have a new wording."""
        chinese = random.random() < CHINESE_SHARE
        new_wording = random.random() < 0.5 and split is Split.HELD_OUT
        return cls(random, split, chinese, new_wording)

    def with_new_wording(self) -> "Draw":
        """For content that cannot be held out (a greeting, 3 + 4): there the wording must be."""
        return replace(self, new_wording=self.split is Split.HELD_OUT)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, choices: Sequence[Choice]) -> Choice:
        return self.random.choice(choices)

    def number(self, least: int, most: int) -> int:
        """Both ends included."""
        return self.random.randint(least, most)

    def wording(self, wordings: Wordings) -> str:
        return self.pick(wordings.new if self.new_wording else wordings.seen)

    def content(self, make: Callable[[], Choice]) -> Choice:
        """The first of the values of `make` that belongs to this split, by its `repr`."""
        while True:
            value = make()
            if is_reserved(value) == (self.split is Split.HELD_OUT):
                return value


def is_reserved(value: object) -> bool:
    """Whether a value is kept for the held-out split: one in ten, by a hash of its `repr`."""
    return blake2b(repr(value).encode(), digest_size=4).digest()[0] % _RESERVED_TENTH == 0


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the assistant is to say. `thinking` is None where the request turns thinking off."""

    thinking: str | None
    content: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Item:
    """A Chat Completions body up to the last question, and its answer.

    Attributes:
        schema: of a JSON answer; the checker then compares values, not spellings.
    """

    task: str
    body: Body
    answer: Answer
    new_wording: bool
    schema: dict[str, Any] | None = None


class Task(Protocol):
    """A kind of item."""

    @property
    def name(self) -> str:
        """Unique among the tasks."""

    def make(self, draw: Draw) -> Item:
        """One item, by nothing but `draw`."""


@dataclass(frozen=True)
class Request:
    """What a task asks for beside the messages."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    schema: dict[str, Any] | None = None


def item(task: str, draw: Draw, request: Request, answer: Answer) -> Item:
    """The item; some get a system message or another effort, as requests of users do."""
    messages = request.messages
    if messages[0]["role"] != "system" and draw.chance(SYSTEM_SHARE):
        system = draw.pick(_SYSTEM_CHINESE if draw.chinese else _SYSTEM)
        messages = [{"role": "system", "content": system}, *messages]
    thinks = answer.thinking is not None
    body: Body = {
        "model": "demo",
        "messages": messages,
        "thinking": {"type": "enabled" if thinks else "disabled"},
    }
    effort = draw.pick(_EFFORTS) if thinks else None
    if effort is not None:
        body["reasoning_effort"] = effort
    if request.tools:
        body["tools"] = request.tools
    if request.schema is not None:
        described = {"name": "answer", "schema": request.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": described}
    return Item(task, body, answer, draw.new_wording, request.schema)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(answer: Answer, first_call: int = 0) -> Message:
    """An answer as a message of the history; ids of its calls count from `first_call`."""
    message: Message = {"role": "assistant", "content": answer.content}
    if answer.thinking is not None:
        message["reasoning_content"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call_id(first_call + place),
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call.arguments)},
            }
            for place, call in enumerate(answer.calls)
        ]
    return message


def call_id(number: int) -> str:
    return f"call_{number}"


def arguments_text(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
