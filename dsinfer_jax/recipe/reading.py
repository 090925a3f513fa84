"""Checking the types of a request body (recipe.md 2.1, "Type messages" and "Arrays").

A reader takes a JSON value and gives it back in normal form, or raises ``BodyError`` with the
official message. Normal form: records are dicts (never lists), choices are strings. Bodies belong
to the request, so readers change lists and dicts in place. The first fault in document order wins;
missing fields are reported after all keys were read, in the order of the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dsinfer_jax.recipe.json_values import float_text
from dsinfer_jax.recipe.quoting import debug_quote

Reader = Callable[[Any], Any]


class BodyError(ValueError):
    """A value of the body has the wrong type or shape; the text is the official message."""


def kind_of(value: Any) -> str:
    """``value`` as messages name it: ``integer `7` ``, ``string "x"``, ``map``, ..."""
    if value is None:
        return "null"
    if value is True or value is False:
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{float_text(value)}`"
    if isinstance(value, str):
        return f"string {debug_quote(value)}"
    return "sequence" if isinstance(value, list) else "map"


def wrong_kind(value: Any, expected: str) -> BodyError:
    """The fault of a value of the wrong kind."""
    return BodyError(f"invalid type: {kind_of(value)}, expected {expected}")


def missing(name: str) -> BodyError:
    """The fault of a record without the required field ``name``."""
    return BodyError(f"missing field `{name}`")


def read_any(value: Any) -> Any:
    """Every JSON value."""
    return value


def read_string(value: Any) -> str:
    """A string."""
    if type(value) is str:
        return value
    raise wrong_kind(value, "a string")


def read_boolean(value: Any) -> bool:
    """``true`` or ``false``."""
    if value is True or value is False:
        return value
    raise wrong_kind(value, "a boolean")


def read_map(value: Any) -> dict[str, Any]:
    """An object with any content."""
    if type(value) is dict:
        return value
    raise wrong_kind(value, "a map")


def read_number(value: Any) -> int | float:
    """A number of any size; it is rounded to 32 bits when it is used."""
    if type(value) is int or type(value) is float:
        return value
    raise wrong_kind(value, "f32")


def unsigned_reader(bits: int) -> Reader:
    """An integer in [0, 2^bits); 1.0 is not an integer."""

    def read(value: Any) -> int:
        if type(value) is not int:
            raise wrong_kind(value, f"u{bits}")
        if not 0 <= value < 1 << bits:
            raise BodyError(f"invalid value: integer `{value}`, expected u{bits}")
        return value

    return read


def choice(*names: str) -> Reader:
    """One of ``names``, or a map of one of them to null."""

    def read(value: Any) -> str:
        if type(value) is str:
            if value not in names:
                raise unknown_variant(value, names)
            return value
        if type(value) is not dict:
            raise wrong_kind(value, "string or map")
        if len(value) != 1:
            raise BodyError("invalid value: map, expected map with a single key")
        [(name, content)] = value.items()
        if name not in names:
            raise unknown_variant(name, names)
        if content is not None:
            raise wrong_kind(content, "unit")
        return name

    return read


def unknown_variant(name: str, names: Sequence[str]) -> BodyError:
    """The fault of a name that is not one of ``names``."""
    quoted = [f"`{known}`" for known in names]
    if len(quoted) > 2:
        expected = "one of " + ", ".join(quoted)
    else:
        expected = " or ".join(quoted)
    return BodyError(f"unknown variant `{name}`, expected {expected}")


def sequence_of(item: Reader) -> Reader:
    """A list of items."""

    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise wrong_kind(value, "a sequence")
        read_items(value, item)
        return value

    return read


def text_or_list(item: Reader, message: str) -> Reader:
    """A string, or a list of items; anything else is refused with ``message``."""

    def read(value: Any) -> str | list[Any]:
        if type(value) is str:
            return value
        if type(value) is not list:
            raise BodyError(message)
        read_items(value, item)
        return value

    return read


def read_items(items: list[Any], item: Reader) -> None:
    """Read every item of a list in place."""
    for position, value in enumerate(items):
        normal = item(value)
        if normal is not value:
            items[position] = normal


class Field(NamedTuple):
    """How a field of a record is read.

    ``required``: a map must have it. ``null_is_absent``: null is not given to the reader.
    ``may_be_left_out``: a list may end before it.
    """

    reader: Reader
    required: bool = True
    null_is_absent: bool = False
    may_be_left_out: bool = False


def optional(reader: Reader) -> Field:
    """A field that may be missing or null."""
    return Field(reader, required=False, null_is_absent=True)


def required(reader: Reader) -> Field:
    """A field that must be there."""
    return Field(reader)


class Record:
    """A reader of maps with known fields; unknown keys are ignored.

    A list of all fields in the order of their declaration is read too. ``buffered`` says how the
    reference reads this record; it only decides the message for a list that is too long.
    """

    def __init__(self, description: str, /, buffered: bool = True, **fields: Field) -> None:
        self._description = description
        self._buffered = buffered
        self._fields = fields
        self._readers: Mapping[str, Reader] = {name: f.reader for name, f in fields.items()}
        self._nullable = frozenset(name for name, f in fields.items() if f.null_is_absent)
        self._required = tuple(name for name, f in fields.items() if f.required)

    def __call__(self, value: Any) -> dict[str, Any]:
        if type(value) is dict:
            return self.read_map(value)
        if type(value) is list:
            return self.read_list(value)
        raise wrong_kind(value, self._description)

    def read_map(self, value: dict[str, Any]) -> dict[str, Any]:
        """Read the fields of a map in place."""
        readers = self._readers
        for name, child in value.items():
            reader = readers.get(name)
            if reader is None or (type(child) is str and reader is read_string):
                continue
            if child is None and name in self._nullable:
                continue
            normal = reader(child)
            if normal is not child:
                value[name] = normal
        for name in self._required:
            if name not in value:
                raise missing(name)
        return value

    def read_list(self, items: Sequence[Any]) -> dict[str, Any]:
        """A map made of the fields in the order of their declaration."""
        record = {}
        position = 0
        for name, field in self._fields.items():
            if position >= len(items):
                if field.may_be_left_out:
                    position += 1
                    continue
                raise self._wrong_length(position)
            child = items[position]
            if child is not None or not field.null_is_absent:
                child = field.reader(child)
            record[name] = child
            position += 1
        if len(items) > len(self._fields):
            raise self._too_long(len(items))
        return record

    def _wrong_length(self, length: int) -> BodyError:
        expected = f"{self._description} with {_elements(len(self._fields))}"
        return BodyError(f"invalid length {length}, expected {expected}")

    def _too_long(self, length: int) -> BodyError:
        fewer = "fewer elements in array"
        expected = f"{_elements(len(self._fields))} in sequence" if self._buffered else fewer
        return BodyError(f"invalid length {length}, expected {expected}")


def _elements(count: int) -> str:
    return f"{count} element" if count == 1 else f"{count} elements"


class Tagged:
    """A reader of maps whose kind is told by the string under ``tag``.

    A list with the tag first is read too. ``other`` reads kinds that are not in ``variants``.
    ``by_position``: the tag may be the position of the variant.
    """

    def __init__(
        self,
        name: str,
        tag: str,
        variants: dict[str, Record],
        other: Record | None = None,
        by_position: bool = False,
    ) -> None:
        self._description = f"internally tagged enum {name}"
        self._tag = tag
        self._variants = variants
        self._other = other
        self._by_position = by_position

    def __call__(self, value: Any) -> dict[str, Any]:
        if type(value) is dict:
            if self._tag not in value:
                raise missing(self._tag)
            given = value[self._tag]
            variant = self._variants.get(given) if type(given) is str else None
            if variant is None:
                given, variant = self._find(given)
                value[self._tag] = given
            return variant.read_map(value)
        if type(value) is list:
            if not value:
                raise missing(self._tag)
            given, variant = self._find(value[0])
            return {self._tag: given, **variant.read_list(value[1:])}
        raise wrong_kind(value, self._description)

    def _find(self, tag: Any) -> tuple[str, Record]:
        variants = self._variants
        if self._by_position and type(tag) is int and tag >= 0:
            if tag >= len(variants) and self._other is not None:
                return "", self._other
            if tag >= len(variants):
                raise BodyError(
                    f"invalid value: integer `{tag}`, "
                    f"expected variant index 0 <= i < {len(variants)}"
                )
            return list(variants.items())[tag]
        if type(tag) is not str:
            raise wrong_kind(tag, "variant identifier")
        variant = variants.get(tag, self._other)
        if variant is None:
            raise unknown_variant(tag, tuple(variants))
        return tag, variant


def variants(enum: str, /, **records: Mapping[str, Field]) -> dict[str, Record]:
    """Records of a ``Tagged`` by tag; each is described as ``Enum::Variant``, named by its tag."""
    return {tag: variant(enum, _camel(tag), **fields) for tag, fields in records.items()}


def variant(enum: str, name: str, /, **fields: Field) -> Record:
    """The record of one variant of ``enum``."""
    return Record(f"struct variant {enum}::{name}", buffered=True, **fields)


def _camel(tag: str) -> str:
    return "".join(word.capitalize() for word in tag.split("_"))
