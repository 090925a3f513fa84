"""Fields of one sentence as JSON of a given schema."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo_training.tasks.named import city, person
from demo_training.tasks.task import Answer, Draw, Item, Request, Wordings, item, user
from demo_training.tasks.words import COLOURS, COLOURS_CHINESE, NOUNS, NOUNS_CHINESE

THINKING_SHARE = 0.35
_TYPES: dict[str, dict[str, Any]] = {
    "name": {"type": "string"},
    "age": {"type": "integer"},
    "city": {"type": "string"},
    "color": {"type": "string"},
    "thing": {"type": "string"},
    "price": {"type": "integer"},
    "count": {"type": "integer"},
    "open": {"type": "boolean"},
    "things": {"type": "array", "items": {"type": "string"}},
}


@dataclass(frozen=True)
class Sentence:
    """A kind of sentence and the fields that can be read from it."""

    fields: tuple[str, ...]
    english: Wordings
    chinese: Wordings


SENTENCES = (
    Sentence(
        ("name", "age", "city"),
        Wordings(
            ("{name} is {age} and lives in {city}.", "{name} lives in {city} and is {age}.",
             "In {city} lives {name}, {age}.", "{name} is {age}, in {city}."),
            ("{name}, {age}, lives in {city}.",),
        ),
        Wordings(
            ("{name}{age}岁，在{city}。", "在{city}的{name}{age}岁。"),
            ("{name}在{city}，{age}岁。",),
        ),
    ),
    Sentence(
        ("thing", "color", "price"),
        Wordings(
            ("The {color} {thing} is {price} dollars.", "{price} dollars for the {color} {thing}.",
             "Here is the {color} {thing}: {price} dollars."),
            ("For {price} dollars: the {color} {thing}.",),
        ),
        Wordings(("{color}{thing}{price}元。",), ("{price}元：{color}{thing}。",)),
    ),
    Sentence(
        ("count", "thing", "city", "name"),
        Wordings(
            ("{name} in {city} has {count} x {thing}.", "{count} x {thing} for {name} in {city}."),
            ("For {name} in {city}: {count} x {thing}.",),
        ),
        Wordings(("{city}的{name}有{count}个{thing}。",), ("{name}在{city}有{count}个{thing}。",)),
    ),
    Sentence(
        ("thing", "city", "open"),
        Wordings(
            ("The {thing} in {city} is {state}.", "In {city} the {thing} is {state}."),
            ("In {city} is a {thing}. It is {state}.",),
        ),
        Wordings(("{city}的{thing}{state}了。",), ("在{city}的{thing}{state}了。",)),
    ),
    Sentence(
        ("name", "things"),
        Wordings(
            ("{name} has a {list}.", "A {list} for {name}."),
            ("{name} likes a {list}.",),
        ),
        Wordings(("{name}有{list}。",), ("{name}看{list}。",)),
    ),
)  # fmt: skip
REQUESTS = Wordings(
    (
        "{text}",
        "Read: {text}",
        "Fill in: {text}",
        "{text} Write JSON.",
        "Read this: {text}",
        "Please fill in: {text}",
    ),
    ("Please read: {text}",),
)
REQUESTS_CHINESE = Wordings(
    ("{text}", "请看：{text}", "请看这个：{text}", "请写：{text}"), ("请看这里：{text}",)
)


@dataclass(frozen=True)
class JsonAnswers:
    """The schema asks for some of the fields, in any order."""

    name: str = "json_answers"

    def make(self, draw: Draw) -> Item:
        number, fields = draw.content(lambda: _form(draw))
        sentence = SENTENCES[number]
        values = {field: _VALUES[field](draw) for field in sentence.fields}
        text = draw.wording(sentence.chinese if draw.chinese else sentence.english)
        text = text.format(**values, list=_list(draw, values), state=_state(draw, values))
        request = draw.wording(REQUESTS_CHINESE if draw.chinese else REQUESTS).format(text=text)
        schema = {
            "type": "object",
            "properties": {field: _TYPES[field] for field in fields},
            "required": list(fields),
            "additionalProperties": False,
        }
        wanted = json.dumps({field: values[field] for field in fields}, ensure_ascii=False)
        names = ", ".join(fields)
        thought = f"要写：{names}。" if draw.chinese else f"The fields are {names}."
        answer = Answer(thought if draw.chance(THINKING_SHARE) else None, wanted)
        return item(self.name, draw, Request([user(request)], schema=schema), answer)


def _form(draw: Draw) -> tuple[int, tuple[str, ...]]:
    number = draw.number(0, len(SENTENCES) - 1)
    fields = SENTENCES[number].fields
    return number, tuple(draw.random.sample(fields, draw.number(1, len(fields))))


def _thing(draw: Draw) -> str:
    return draw.pick(NOUNS_CHINESE if draw.chinese else NOUNS)


_VALUES: dict[str, Callable[[Draw], Any]] = {
    "name": person,
    "city": city,
    "thing": _thing,
    "age": lambda draw: draw.number(2, 99),
    "price": lambda draw: draw.number(2, 999),
    "count": lambda draw: draw.number(2, 99),
    "color": lambda draw: draw.pick(COLOURS_CHINESE if draw.chinese else COLOURS),
    "open": lambda draw: draw.chance(0.5),
    "things": lambda draw: [_thing(draw) for _ in range(draw.number(2, 4))],
}


def _list(draw: Draw, values: dict[str, Any]) -> str:
    """`lamp, a box and a cup`: the article of the first stands in the sentence."""
    things = values.get("things")
    if things is None:
        return ""
    if draw.chinese:
        return "、".join(things)
    return ", a ".join(things[:-1]) + " and a " + things[-1]


def _state(draw: Draw, values: dict[str, Any]) -> str:
    if draw.chinese:
        return "开" if values.get("open") else "关"
    return "open" if values.get("open") else "closed"
