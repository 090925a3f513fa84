"""People and places of an item: those of the held-out split are others."""

from demo_training.tasks.task import Draw, Split
from demo_training.tasks.words import (
    CITIES,
    CITIES_CHINESE,
    NAMES,
    NAMES_CHINESE,
    NEW_CITIES,
    NEW_CITIES_CHINESE,
    NEW_NAMES,
    NEW_NAMES_CHINESE,
)


def person(draw: Draw) -> str:
    if draw.split is Split.HELD_OUT:
        return draw.pick(NEW_NAMES_CHINESE if draw.chinese else NEW_NAMES)
    return draw.pick(NAMES_CHINESE if draw.chinese else NAMES)


def city(draw: Draw) -> str:
    if draw.split is Split.HELD_OUT:
        return draw.pick(NEW_CITIES_CHINESE if draw.chinese else NEW_CITIES)
    return draw.pick(CITIES_CHINESE if draw.chinese else CITIES)
