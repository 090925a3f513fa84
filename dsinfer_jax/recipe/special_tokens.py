"""The kinds of control token and their spellings (recipe.md 4.2)."""

from __future__ import annotations

from typing import ClassVar

from dsinfer_jax.recipe.values import Enumeration, Value, instance, optional_string

IMAGE_SPECIAL_TOKEN_ID = 129264


class SpecialToken(Enumeration):
    """A kind of control token."""

    __slots__ = ()
    Bos: ClassVar[SpecialToken]
    Eos: ClassVar[SpecialToken]
    ThinkingStart: ClassVar[SpecialToken]
    ThinkingEnd: ClassVar[SpecialToken]
    System: ClassVar[SpecialToken]
    User: ClassVar[SpecialToken]
    Assistant: ClassVar[SpecialToken]
    LatestReminder: ClassVar[SpecialToken]
    Dsml: ClassVar[SpecialToken]
    Image: ClassVar[SpecialToken]
    Ref: ClassVar[SpecialToken]
    RefEnd: ClassVar[SpecialToken]
    Box: ClassVar[SpecialToken]
    BoxEnd: ClassVar[SpecialToken]
    Point: ClassVar[SpecialToken]
    PointEnd: ClassVar[SpecialToken]
    Polygon: ClassVar[SpecialToken]
    PolygonEnd: ClassVar[SpecialToken]

    def default_str(self) -> str:
        """The spelling this kind has unless a ``SpecialTokens`` says otherwise."""
        return DEFAULT_SPELLINGS[self._position]


# In the order of the members above.
DEFAULT_SPELLINGS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<think>",
    "</think>",
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "｜DSML｜",
    "<｜image｜>",
    "<｜ref｜>",
    "<｜/ref｜>",
    "<｜box｜>",
    "<｜/box｜>",
    "<｜point｜>",
    "<｜/point｜>",
    "<｜polygon｜>",
    "<｜/polygon｜>",
)


class SpecialTokens(Value):
    """The spelling of every kind of control token; ``None`` keeps the default spelling.

    An empty spelling is allowed: nothing is written there. Each argument is also a slot with an
    underscore in front (``tokens._dsml``) for the code that renders and parses.
    """

    __slots__ = (
        "_assistant",
        "_bos",
        "_box",
        "_box_end",
        "_dsml",
        "_eos",
        "_image",
        "_latest_reminder",
        "_point",
        "_point_end",
        "_polygon",
        "_polygon_end",
        "_ref",
        "_ref_end",
        "_spellings",
        "_system",
        "_thinking_end",
        "_thinking_start",
        "_user",
    )
    _bos: str
    _eos: str
    _thinking_start: str
    _thinking_end: str
    _system: str
    _user: str
    _assistant: str
    _latest_reminder: str
    _dsml: str
    _image: str
    _spellings: tuple[str, ...]

    def __new__(
        cls,
        *,
        bos: str | None = None,
        eos: str | None = None,
        thinking_start: str | None = None,
        thinking_end: str | None = None,
        system: str | None = None,
        user: str | None = None,
        assistant: str | None = None,
        latest_reminder: str | None = None,
        dsml: str | None = None,
        image: str | None = None,
        ref: str | None = None,
        ref_end: str | None = None,
        box: str | None = None,
        box_end: str | None = None,
        point: str | None = None,
        point_end: str | None = None,
        polygon: str | None = None,
        polygon_end: str | None = None,
    ) -> SpecialTokens:
        given = {
            "bos": bos,
            "eos": eos,
            "thinking_start": thinking_start,
            "thinking_end": thinking_end,
            "system": system,
            "user": user,
            "assistant": assistant,
            "latest_reminder": latest_reminder,
            "dsml": dsml,
            "image": image,
            "ref": ref,
            "ref_end": ref_end,
            "box": box,
            "box_end": box_end,
            "point": point,
            "point_end": point_end,
            "polygon": polygon,
            "polygon_end": polygon_end,
        }
        self = object.__new__(cls)
        spellings = []
        for (name, value), default in zip(given.items(), DEFAULT_SPELLINGS, strict=True):
            checked = optional_string(name, value)
            spelling = default if checked is None else checked
            setattr(self, "_" + name, spelling)
            spellings.append(spelling)
        self._spellings = tuple(spellings)
        return self

    def token(self, token: SpecialToken) -> str:
        """The spelling of ``token``."""
        return self._spellings[int(instance("token", token, SpecialToken))]


DEFAULT_SPECIAL_TOKENS = SpecialTokens()
