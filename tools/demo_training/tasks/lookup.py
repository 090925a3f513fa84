"""Facts in a long text, and questions about some of them.

Every fact belongs to a pair of words, and other facts share one of the two. The key stands right
before the value and the answer repeats the fact, so that one pattern serves at every length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from demo_training.tasks.task import (
    Answer,
    Draw,
    Item,
    Message,
    Request,
    Split,
    Wordings,
    assistant,
    is_reserved,
    item,
    user,
)
from demo_training.tasks.words import (
    ADJECTIVES,
    ADJECTIVES_CHINESE,
    NAMES,
    NAMES_CHINESE,
    NOUNS,
    NOUNS_CHINESE,
)

Key = tuple[str, str]

THINKING_SHARE = 0.15


@dataclass(frozen=True)
class Language:
    """How facts of one kind are said. `{key}` is made of a pair by `key`."""

    key: str
    fact: str
    questions: Wordings
    openings: Wordings
    values: tuple[str, ...]  # attributes that a text may be about


_QUESTIONS = Wordings(
    (
        "What is the {attribute} of {key}?",
        "Tell me the {attribute} of {key}.",
        "{attribute} of {key}?",
        "The {attribute} of {key}?",
        "Please tell me the {attribute} of {key}.",
        "what is the {attribute} of {key}?",
        "what is the {attribute} of {key}",
        "Hi! What is the {attribute} of {key}?",
        "Hello, what is the {attribute} of {key}?",
        "Thanks! What is the {attribute} of {key}?",
        "Hi, tell me the {attribute} of {key}.",
        "Please, tell me the {attribute} of {key}.",
        "Please write the {attribute} of {key}.",
        "Now say the {attribute} of {key}.",
    ),
    ("Hi, what is the {attribute} of {key}?", "Please, what is the {attribute} of {key}?"),
)
_OPENINGS = Wordings(
    ("Here are some facts.", "Read this text.", "Facts:", "Read these facts."),
    ("Please read this text.", "Here is a text."),
)
_QUESTIONS_CHINESE = Wordings(
    (
        "{key}的{attribute}是多少？",
        "请问{key}的{attribute}是多少？",
        "{key}的{attribute}？",
        "你好，{key}的{attribute}是多少？",
        "请看，{key}的{attribute}是多少？",
        "请写{key}的{attribute}。",
        "再说一次{key}的{attribute}。",
    ),
    ("请问，{key}的{attribute}是多少？",),
)
_OPENINGS_CHINESE = Wordings(("请看。", "请看这里。"), ("请看这个。",))

PAIRS = Language(
    "the {} {}", "The {attribute} of {key} is {value}.", _QUESTIONS, _OPENINGS, ("code", "price")
)
PAIRS_CHINESE = Language(
    "{}{}", "{key}的{attribute}是{value}。", _QUESTIONS_CHINESE, _OPENINGS_CHINESE, ("号码", "价钱")
)
OWNED = Language(
    "{} for the {}",
    "The {attribute} of {key} is {value}.",
    _QUESTIONS,
    _OPENINGS,
    ("code", "price"),
)
OWNED_CHINESE = Language(
    "{}的{}", "{key}的{attribute}是{value}。", _QUESTIONS_CHINESE, _OPENINGS_CHINESE,
    ("号码", "价钱"),
)  # fmt: skip
NOTES = Language(
    "the {} {}", "The {attribute} of {key} is: {value}.", _QUESTIONS, _OPENINGS, ("note",)
)
NOTES_CHINESE = Language(
    "{}{}", "{key}的{attribute}是：{value}。", _QUESTIONS_CHINESE, _OPENINGS_CHINESE, ("话",)
)


@dataclass(frozen=True)
class Kind:
    """What the facts of a task are about."""

    english: Language
    chinese: Language
    first: tuple[str, ...]
    first_chinese: tuple[str, ...]
    words: bool = False  # values are a few words, not a number


CODES = Kind(PAIRS, PAIRS_CHINESE, ADJECTIVES, ADJECTIVES_CHINESE)
CODES_OF_PEOPLE = Kind(OWNED, OWNED_CHINESE, NAMES, NAMES_CHINESE)
COPIES = Kind(NOTES, NOTES_CHINESE, ADJECTIVES, ADJECTIVES_CHINESE, words=True)


@dataclass(frozen=True)
class LookUp:
    """Texts of `fewest` to `most` facts and `least_questions` to `questions` questions, in turns.

    In texts of few facts there are fewer questions.
    """

    name: str
    kind: Kind
    fewest: int
    most: int
    questions: int
    least_questions: int = 1

    def make(self, draw: Draw) -> Item:
        kind = self.kind
        language = kind.chinese if draw.chinese else kind.english
        count = draw.number(self.fewest, self.most)
        asked, others = self._keys(draw, count)
        attribute = draw.pick(language.values)
        facts = {
            key: language.fact.format(
                attribute=attribute, key=language.key.format(*key), value=self._value(draw)
            )
            for key in _shuffled(draw, [*asked, *others])
        }
        text = draw.wording(language.openings) + "\n" + "\n".join(facts.values())
        asks = [
            draw.wording(language.questions).format(
                attribute=attribute, key=language.key.format(*key)
            )
            for key in asked
        ]
        asks = [ask[0].upper() + ask[1:] for ask in asks]
        thinks = draw.chance(THINKING_SHARE)
        answers = [_answer(draw, facts[key], thinks) for key in asked]
        messages = _turns(draw, text, asks, answers)
        return item(self.name, draw, Request(messages), answers[-1])

    def _keys(self, draw: Draw, count: int) -> tuple[list[Key], list[Key]]:
        """Pairs to ask for, and the others: for each of the first, one that shares each word.

        Reserved pairs are asked for in the held-out split and do not occur in training at all.
        """
        first = self.kind.first_chinese if draw.chinese else self.kind.first
        second = NOUNS_CHINESE if draw.chinese else NOUNS
        free, reserved = _pairs(first, second)
        held_out = draw.split is Split.HELD_OUT
        pool = free + reserved if held_out else free
        askable = reserved if held_out else free
        wanted = draw.number(self.least_questions, self.questions)
        questions = min(wanted, max(1, count // 3), len(askable))
        asked = draw.random.sample(askable, questions)
        sharing = [
            key
            for left, right in asked
            for key in ((draw.pick(first), right), (left, draw.pick(second)))
        ]
        # in order, each once; asked ones are taken out below
        mixed = dict.fromkeys([*sharing, *draw.random.sample(pool, min(count, len(pool)))])
        allowed = set(pool).difference(asked)
        others = [key for key in mixed if key in allowed]
        return asked, others[: count - len(asked)]

    def _value(self, draw: Draw) -> str:
        if not self.kind.words:
            return str(draw.number(1000, 9999))
        words = ADJECTIVES_CHINESE + NOUNS_CHINESE if draw.chinese else ADJECTIVES + NOUNS
        blank = "" if draw.chinese else " "
        return blank.join(draw.pick(words) for _ in range(draw.number(3, 6)))


@cache
def _pairs(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[list[Key], list[Key]]:
    """All pairs of words: free ones and those of the held-out split."""
    pairs = list(product(first, second))
    return [key for key in pairs if not is_reserved(key)], list(filter(is_reserved, pairs))


def _shuffled(draw: Draw, keys: Sequence[Key]) -> list[Key]:
    return draw.random.sample(keys, len(keys))


def _answer(draw: Draw, fact: str, thinks: bool) -> Answer:
    thinking = "我找这句话。" if draw.chinese else "I look for the fact."
    return Answer(thinking if thinks else None, fact)


def _turns(draw: Draw, text: str, asks: list[str], answers: list[Answer]) -> list[Message]:
    """The text in the system message, in a turn of its own, or before the first question."""
    form = draw.pick(("system", "turn", "same", "same"))
    messages: list[Message] = []
    opening = ""
    if form == "system":
        messages.append({"role": "system", "content": text})
    elif form == "turn":
        thinks = answers[0].thinking is not None
        thinking = ("我看了。" if draw.chinese else "I read the text.") if thinks else None
        read = Answer(thinking, "好的。" if draw.chinese else "OK.")
        messages += [user(text), assistant(read)]
    else:
        opening = text + "\n"
    for ask, answer in zip(asks, answers):
        messages += [user(opening + ask), assistant(answer)]
        opening = ""
    return messages[:-1]
