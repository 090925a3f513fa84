"""Days of the week, counted one by one."""

from dataclasses import dataclass

from demo_training.tasks.task import Answer, Draw, Item, Request, Wordings, item, user
from demo_training.tasks.words import DAYS, DAYS_CHINESE

MOST_DAYS = 13
THINKING_SHARE = 0.7

AFTER = Wordings(
    (
        "What day is {n} days after {day}?",
        "Today is {day}. What day is it in {n} days?",
        "Which day is {n} days after {day}?",
        "It is {day}. Which day is it in {n} days?",
        "{day} and {n} days?",
        "Tell me the day {n} days after {day}.",
        "what day is {n} days after {day}?",
        "Please, which day is {n} days after {day}?",
    ),
    (
        "Today is {day}. Which day is it in {n} days?",
        "Please tell me the day {n} days after {day}.",
    ),
)
BEFORE = Wordings(
    (
        "What day is {n} days before {day}?",
        "Today is {day}. What day was it {n} days before?",
        "Which day is {n} days before {day}?",
        "Tell me the day {n} days before {day}.",
        "Please, what day is {n} days before {day}?",
    ),
    ("Please tell me the day {n} days before {day}.",),
)
AFTER_CHINESE = Wordings(
    ("今天是{day}。{n}天后是星期几？", "{day}后{n}天是星期几？"), ("{day}的{n}天后是星期几？",)
)
BEFORE_CHINESE = Wordings(
    ("今天是{day}。{n}天前是星期几？", "{day}前{n}天是星期几？"), ("{day}的{n}天前是星期几？",)
)
_WORDINGS = {
    (1, False): AFTER,
    (-1, False): BEFORE,
    (1, True): AFTER_CHINESE,
    (-1, True): BEFORE_CHINESE,
}


@dataclass(frozen=True)
class Dates:
    """`n` days after or before a day: `1 Tuesday, 2 Wednesday, ...`."""

    name: str = "dates"

    def make(self, draw: Draw) -> Item:
        day, count, step = draw.content(
            lambda: (draw.number(0, 6), draw.number(2, MOST_DAYS), draw.pick((1, 1, -1)))
        )
        days = DAYS_CHINESE if draw.chinese else DAYS
        passed = [f"{n} {days[(day + step * n) % 7]}" for n in range(1, count + 1)]
        counted = ", ".join(passed) + "."
        reached = days[(day + step * count) % 7]
        result = f"是{reached}。" if draw.chinese else f"It is {reached}."
        thinks = draw.chance(THINKING_SHARE)
        answer = Answer(counted, result) if thinks else Answer(None, f"{counted} {result}")
        question = draw.wording(_WORDINGS[step, draw.chinese]).format(n=count, day=days[day])
        return item(self.name, draw, Request([user(question)]), answer)
