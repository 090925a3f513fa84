"""People and places of an item: those of the held-out split are others.

Some are made up, so that a name can only be had from where it stands.
"""

from demo_training.tasks.task import Draw, Split
from demo_training.tasks.words import (
    CHARACTERS,
    CITIES,
    CITIES_CHINESE,
    NAMES,
    NAMES_CHINESE,
    NEW_CITIES,
    NEW_CITIES_CHINESE,
    NEW_NAMES,
    NEW_NAMES_CHINESE,
    SYLLABLES,
)

MADE_UP_SHARE = 0.4


def person(draw: Draw) -> str:
    if draw.split is Split.HELD_OUT:
        return draw.pick(NEW_NAMES_CHINESE if draw.chinese else NEW_NAMES)
    if draw.chance(MADE_UP_SHARE):
        return made_up(draw).capitalize()
    return draw.pick(NAMES_CHINESE if draw.chinese else NAMES)


def city(draw: Draw) -> str:
    if draw.split is Split.HELD_OUT:
        return draw.pick(NEW_CITIES_CHINESE if draw.chinese else NEW_CITIES)
    if draw.chance(MADE_UP_SHARE):
        return made_up(draw).capitalize()
    return draw.pick(CITIES_CHINESE if draw.chinese else CITIES)


def made_up(draw: Draw) -> str:
    """A word that is none of the others, except by chance; never one of the held-out split."""
    while True:
        parts = CHARACTERS if draw.chinese else SYLLABLES
        word = "".join(draw.random.sample(parts, 2 if draw.chinese else draw.number(2, 3)))
        if word not in NEW_NAMES_CHINESE + NEW_CITIES_CHINESE:
            return word
