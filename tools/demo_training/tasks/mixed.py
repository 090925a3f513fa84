"""Conversations about several things: small talk with other tasks in between."""

from dataclasses import dataclass

from demo_training.tasks.arithmetic import Arithmetic
from demo_training.tasks.copying import Copying
from demo_training.tasks.dates import Dates
from demo_training.tasks.small_talk import SmallTalk
from demo_training.tasks.task import Draw, Item, Message, Request, Task, assistant, item
from demo_training.tasks.units import Units

_TALK = SmallTalk()
_OTHERS: tuple[Task, ...] = (Arithmetic(), Copying("copying", 2, 12), Dates(), Units())


@dataclass(frozen=True)
class Mixed:
    """The first exchange of small talk, one or two other questions, the rest of the small talk.

    One small talk at most, so that a name is given once and asked for across other things.
    """

    name: str = "mixed"

    def make(self, draw: Draw) -> Item:
        thinks = draw.chance(0.5)
        talk = _in_mode(_TALK, draw, thinks)
        others = [_in_mode(draw.pick(_OTHERS), draw, thinks) for _ in range(draw.number(1, 2))]
        said = _messages(talk)
        between = [message for other in others for message in _messages(other)]
        messages = said[:2] + between + said[2:]
        last = talk if len(said) > 2 else others[-1]
        return item(self.name, draw, Request(messages[:-1]), last.answer)


def _in_mode(task: Task, draw: Draw, thinks: bool) -> Item:
    while True:
        made = task.make(draw)
        if (made.answer.thinking is not None) == thinks:
            return made


def _messages(made: Item) -> list[Message]:
    """Questions and answers in turn, without a system message."""
    messages = [*made.body["messages"], assistant(made.answer)]
    return [message for message in messages if message["role"] != "system"]
