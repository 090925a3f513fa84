"""Lengths, weights and times from one unit to another."""

from collections.abc import Callable
from dataclasses import dataclass

from demo_training.tasks.arithmetic_steps import multiplied
from demo_training.tasks.task import Answer, Draw, Item, Request, Wordings, item, user

THINKING_SHARE = 0.6

ENGLISH = Wordings(
    (
        "How many {to} are {n} {unit}?",
        "What is {n} {unit} in {to}?",
        "{n} {unit} in {to}?",
        "{n} {unit} in {to}",
        "Please tell me {n} {unit} in {to}.",
        "Write {n} {unit} in {to}.",
    ),
    ("Tell me {n} {unit} in {to}.", "Hi, how many {to} are {n} {unit}?"),
)
CHINESE = Wordings(
    ("{n}{unit}是多少{to}？", "{n}{unit}等于多少{to}？"), ("请问{n}{unit}是多少{to}？",)
)


@dataclass(frozen=True)
class Conversion:
    """Names of the units in both languages, a range, and how the value is worked out.

    `work` gives the steps and the value as text; in the value `{to}` stands for the unit.
    """

    unit: tuple[str, str]
    to: tuple[str, str]
    least: int
    most: int
    work: Callable[[int, str, str], tuple[str, str]]


def _point(number: int, unit: str, to: str) -> tuple[str, str]:
    whole, part = divmod(number, 100)
    return f"{whole} and {part:02d}.", f"{whole}.{part:02d} {to}"


def _zeros(zeros: int) -> Callable[[int, str, str], tuple[str, str]]:
    def work(number: int, unit: str, to: str) -> tuple[str, str]:
        return f"{number} and {'0' * zeros}.", f"{number}{'0' * zeros} {to}"

    return work


def _times(factor: int, zeros: int) -> Callable[[int, str, str], tuple[str, str]]:
    """Times factor, a digit, and zeros after it."""

    def work(number: int, unit: str, to: str) -> tuple[str, str]:
        steps = " ".join(multiplied(number, factor))
        return steps, f"{number * factor}{'0' * zeros} {to}"

    return work


def _hours(number: int, unit: str, to: str) -> tuple[str, str]:
    """Count the sixties that fit, then take them away."""
    hours, minutes = divmod(number, 60)
    sixties = ", ".join(str(60 * hour) for hour in range(1, hours + 1))
    steps = f"{sixties}. {number}-{60 * hours}={minutes}."
    return steps, f"{hours} {to} {minutes} {unit}"


CONVERSIONS = (
    Conversion(("cm", "厘米"), ("m", "米"), 101, 999, _point),
    Conversion(("m", "米"), ("cm", "厘米"), 2, 99, _zeros(2)),
    Conversion(("km", "公里"), ("m", "米"), 2, 99, _zeros(3)),
    Conversion(("kg", "公斤"), ("g", "克"), 2, 99, _zeros(3)),
    Conversion(("minutes", "分钟"), ("hours", "小时"), 61, 299, _hours),
    Conversion(("hours", "小时"), ("minutes", "分钟"), 2, 24, _times(6, 1)),
    Conversion(("weeks", "星期"), ("days", "天"), 2, 52, _times(7, 0)),
)


@dataclass(frozen=True)
class Units:
    """One conversion, worked out in the thinking or else in the answer."""

    name: str = "units"

    def make(self, draw: Draw) -> Item:
        place, number = draw.content(lambda: self._question(draw))
        conversion = CONVERSIONS[place]
        unit, to = conversion.unit[draw.chinese], conversion.to[draw.chinese]
        steps, value = conversion.work(number, unit, to)
        result = f"{number} {unit} = {value}{'。' if draw.chinese else '.'}"
        thinks = draw.chance(THINKING_SHARE)
        answer = Answer(steps, result) if thinks else Answer(None, f"{steps} {result}")
        question = draw.wording(CHINESE if draw.chinese else ENGLISH)
        question = question.format(n=number, unit=unit, to=to)
        return item(self.name, draw, Request([user(question)]), answer)

    def _question(self, draw: Draw) -> tuple[int, int]:
        place = draw.number(0, len(CONVERSIONS) - 1)
        conversion = CONVERSIONS[place]
        return place, draw.number(conversion.least, conversion.most)
