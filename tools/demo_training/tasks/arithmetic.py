"""Sums, differences and products of one and two digits."""

from dataclasses import dataclass

from demo_training.tasks.arithmetic_steps import added, multiplied, multiplied_long, subtracted
from demo_training.tasks.task import Answer, Draw, Item, Request, Wordings, item, user

TABLE_SHARE = 0.25  # of items with two digits in all, answered from memory
THINKING_SHARE = 0.7
_OPERATIONS = ("+", "+", "+", "-", "-", "-", "x", "x")
_SPELLINGS = {
    "+": ("{}+{}", "{} + {}", "{} + {}", "{} plus {}"),
    "-": ("{}-{}", "{} - {}", "{} - {}", "{} minus {}"),
    "x": ("{}x{}", "{} x {}", "{}*{}", "{} * {}", "{} × {}", "{} times {}"),
}

ENGLISH = Wordings(
    (
        "What is {sum}?",
        "{sum}",
        "{sum} =",
        "{sum}=?",
        "Compute {sum}.",
        "How much is {sum}?",
        "Please compute {sum}.",
        "Tell me {sum}.",
        "Hi! What is {sum}?",
        "what is {sum}?",
        "what is {sum}",
    ),
    ("Please tell me {sum}.", "Hello, how much is {sum}?", "Compute {sum}", "Hi, what is {sum}?"),
)
CHINESE = Wordings(
    ("{sum}等于多少？", "{sum}是多少？", "请算{sum}。", "{sum}"),
    ("请问{sum}是多少？", "算{sum}。"),
)


@dataclass(frozen=True)
class Sum:
    """One question. `first` is not less than `second` in differences."""

    first: int
    operation: str
    second: int

    @property
    def value(self) -> int:
        if self.operation == "x":
            return self.first * self.second
        return self.first + (self.second if self.operation == "+" else -self.second)

    @property
    def steps(self) -> list[str]:
        if self.operation == "+":
            return added(self.first, self.second)
        if self.operation == "-":
            return subtracted(self.first, self.second)
        if self.second > 9:
            return multiplied_long(self.first, self.second)
        return multiplied(self.first, self.second)

    def __str__(self) -> str:
        return f"{self.first}{self.operation}{self.second}"


@dataclass(frozen=True)
class Arithmetic:
    """Two digits are worked out, in the thinking or else in the answer; one digit is known."""

    name: str = "arithmetic"

    def make(self, draw: Draw) -> Item:
        if draw.chance(TABLE_SHARE):
            draw = draw.with_new_wording()
            asked, steps = _small_sum(draw), []
        else:
            asked = draw.content(lambda: _large_sum(draw))
            steps = asked.steps
        result = f"{asked}={asked.value}."
        worked = " ".join([*steps, result])
        thinks = draw.chance(THINKING_SHARE)
        answer = Answer(worked, result) if thinks else Answer(None, worked)
        shown = draw.pick(_SPELLINGS[asked.operation]).format(asked.first, asked.second)
        question = draw.wording(CHINESE if draw.chinese else ENGLISH).format(sum=shown)
        return item(self.name, draw, Request([user(question)]), answer)


def _small_sum(draw: Draw) -> Sum:
    first, second = draw.number(0, 9), draw.number(0, 9)
    operation = draw.pick(_OPERATIONS)
    if operation == "-":
        first, second = max(first, second), min(first, second)
    return Sum(first, operation, second)


def _large_sum(draw: Draw) -> Sum:
    """At least one operand of two digits; the second of a product often has one."""
    operation = draw.pick(_OPERATIONS)
    first = draw.number(10, 99)
    small_second = draw.chance(0.5 if operation == "x" else 0.2)
    second = draw.number(2, 9) if small_second else draw.number(10, 99)
    if operation == "-":
        first, second = max(first, second), min(first, second)
    elif operation == "+" and draw.chance(0.5):
        first, second = second, first
    return Sum(first, operation, second)
