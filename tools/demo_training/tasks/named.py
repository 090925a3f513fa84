"""People and places of an item: those of the held-out split are others.

Some are made up, so that a name can only be had from where it stands.
"""

from demo_training.tasks.task import Draw, Split
from demo_training.tasks.words import (
    CHARACTERS,
    CITIES,
    CITIES_CHINESE,
    LETTERS,
    NAMES,
    NAMES_CHINESE,
    NEW_CITIES,
    NEW_CITIES_CHINESE,
    NEW_NAMES,
    NEW_NAMES_CHINESE,
    SYLLABLES,
    VOWELS,
)

MADE_UP_SHARE = 0.4
LETTERS_SHARE = 0.6  # of made-up words: names that are spelled like no other are copied as well
HELD_OUT = {*NEW_NAMES, *NEW_NAMES_CHINESE, *NEW_CITIES, *NEW_CITIES_CHINESE}


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
        word = _word(draw)
        if word.capitalize() not in HELD_OUT:
            return word


def _word(draw: Draw) -> str:
    if draw.chinese:
        return "".join(draw.random.sample(CHARACTERS, 2))
    if draw.chance(LETTERS_SHARE):
        more = (
            draw.pick(VOWELS if draw.chance(0.5) else LETTERS) for _ in range(draw.number(2, 6))
        )
        return draw.pick(LETTERS) + "".join(more)
    return "".join(draw.random.sample(SYLLABLES, draw.number(2, 3)))
