"""Say a text again, to the letter."""

from dataclasses import dataclass

from demo_training.tasks.named import made_up
from demo_training.tasks.task import Answer, Draw, Item, Request, Wordings, item, user
from demo_training.tasks.words import ADJECTIVES, ADJECTIVES_CHINESE, NOUNS, NOUNS_CHINESE

THINKING_SHARE = 0.2
NUMBER_SHARE = 0.15
MADE_UP_SHARE = 0.1

ENGLISH = Wordings(
    (
        "Repeat: {text}",
        "Repeat this text:\n{text}",
        "Copy this text:\n{text}",
        "Say exactly: {text}",
        "Please repeat: {text}",
        "Copy: {text}",
        "Write this again: {text}",
    ),
    ("Please copy this text:\n{text}", "Say this again: {text}", "Please copy: {text}"),
)
CHINESE = Wordings(
    ("请再说一次：{text}", "再说一次：{text}", "请写：{text}"), ("请再写一次：{text}",)
)
THINKING, THINKING_CHINESE = "I copy the text.", "我再写一次。"


@dataclass(frozen=True)
class Copying:
    """Texts of `fewest` to `most` words, made-up words and numbers in random order."""

    name: str
    fewest: int
    most: int

    def make(self, draw: Draw) -> Item:
        text = draw.content(lambda: self._text(draw))
        wordings, thinking = (CHINESE, THINKING_CHINESE) if draw.chinese else (ENGLISH, THINKING)
        answer = Answer(thinking if draw.chance(THINKING_SHARE) else None, text)
        question = draw.wording(wordings).format(text=text)
        return item(self.name, draw, Request([user(question)]), answer)

    def _text(self, draw: Draw) -> str:
        count = draw.number(self.fewest, self.most)
        chosen = [_word(draw) for _ in range(count)]
        return ("" if draw.chinese else " ").join(chosen)


def _word(draw: Draw) -> str:
    if draw.chance(NUMBER_SHARE):
        return str(draw.number(0, 999))
    if draw.chance(MADE_UP_SHARE):
        return made_up(draw)
    return draw.pick(ADJECTIVES_CHINESE + NOUNS_CHINESE if draw.chinese else ADJECTIVES + NOUNS)
