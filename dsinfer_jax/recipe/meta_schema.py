"""Whether a value is a JSON Schema: the meta-schemas as tables (recipe.md 2.9, phase 1).

A draft is a list of groups of keywords. At each level of a schema the groups are looked at in
order, the keys of a group in the order in which the schema has them, and a nested schema is checked
completely where its keyword stands. The first fault is reported in the official words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from dsinfer_jax.recipe.json_values import write_compact
from dsinfer_jax.recipe.regular_expressions import is_regular_expression
from dsinfer_jax.recipe.uri_references import uri_fault

Check = Callable[[Any, "Draft"], None]
Group = dict[str, Check]

_ANCHOR = "^[A-Za-z_][-A-Za-z0-9._]*$"
_ANCHOR_2019 = "^[A-Za-z][-A-Za-z0-9.:_]*$"
_URL = re.compile(r"https?://json-schema\.org/(.*?)#?\Z")
_NO_FRAGMENT = "^[^#]*#?$"
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


class SchemaError(Exception):
    """The first fault of a schema, in the official words without the prefix."""


class Draft:
    """One meta-schema: its groups of keywords, and what else differs between drafts.

    ``nesting`` are the keywords that are searched for references and anchors. Before 2019
    (``is_old``) a reference hides its neighbours and anchors are written as ids.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        nesting: str,
        is_old: bool = False,
        is_draft_04: bool = False,
    ) -> None:
        self._groups = groups
        self._keywords = frozenset(keyword for group in groups for keyword in group)
        self.nesting = frozenset(nesting.split())
        self.is_old = is_old
        self.is_draft_04 = is_draft_04

    def knows(self, keyword: str) -> bool:
        """Whether ``keyword`` means something in this draft."""
        return keyword in self._keywords

    def check(self, schema: Any) -> None:
        """Raise ``SchemaError`` for the first fault of ``schema``."""
        if not isinstance(schema, dict):
            if self.is_draft_04:
                raise _wrong_type(schema, "object")
            if not isinstance(schema, bool):
                raise SchemaError(f'{write_compact(schema)} is not of types "boolean", "object"')
            return
        for group in self._groups:
            for keyword, value in schema.items():
                check = group.get(keyword)
                if check is not None:
                    check(value, self)
        if self.is_draft_04:
            for keyword, needed in (
                ("exclusiveMaximum", "maximum"),
                ("exclusiveMinimum", "minimum"),
            ):
                if keyword in schema and needed not in schema:
                    raise SchemaError(f'"{needed}" is a required property')

    def accepts(self, schema: Any) -> bool:
        """Whether ``schema`` has no fault."""
        try:
            self.check(schema)
        except SchemaError:
            return False
        return True


def _wrong_type(value: Any, expected: str) -> SchemaError:
    return SchemaError(f'{write_compact(value)} is not of type "{expected}"')


def _any_of(value: Any) -> SchemaError:
    return SchemaError(
        f"{write_compact(value)} is not valid under any of the schemas listed in the "
        "'anyOf' keyword"
    )


def _of_type(kind: type | tuple[type, ...], name: str) -> Check:
    def check(value: Any, draft: Draft) -> None:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _wrong_type(value, name)

    return check


def _anything(value: Any, draft: Draft) -> None:
    return


_string = _of_type(str, "string")
_boolean = _of_type(bool, "boolean")
_number = _of_type((int, float), "number")
_object = _of_type(dict, "object")
_array = _of_type(list, "array")


def _matching(pattern: str) -> Check:
    compiled = re.compile(pattern.replace("$", r"\Z"))

    def check(value: Any, draft: Draft) -> None:
        _string(value, draft)
        if not compiled.search(value):
            raise SchemaError(f'{write_compact(value)} does not match "{pattern}"')

    return check


def _regex(value: Any, draft: Draft) -> None:
    _string(value, draft)
    if not is_regular_expression(value, ecma=True):
        raise SchemaError(f'{write_compact(value)} is not a "regex"')


def _uri_reference(value: Any, draft: Draft) -> None:
    _string(value, draft)
    if uri_fault(value) is not None:
        raise SchemaError(f'{write_compact(value)} is not a "uri-reference"')


def _count(value: Any, draft: Draft) -> None:
    """An integer from 0; it may be written 1.0 except in draft 04."""
    integral = isinstance(value, int) or (
        isinstance(value, float) and value.is_integer() and not draft.is_draft_04
    )
    if isinstance(value, bool) or not integral:
        raise _wrong_type(value, "integer")
    if value < 0:
        raise SchemaError(f"{write_compact(value)} is less than the minimum of 0")


def _positive(value: Any, draft: Draft) -> None:
    _number(value, draft)
    if value <= 0:
        raise SchemaError(f"{write_compact(value)} is less than or equal to the minimum of 0")


def _schema(value: Any, draft: Draft) -> None:
    draft.check(value)


def _schemas(value: Any, draft: Draft) -> None:
    _array(value, draft)
    _not_empty(value)
    for schema in value:
        draft.check(schema)


def _not_empty(value: list[Any]) -> None:
    if not value:
        raise SchemaError("[] has less than 1 item")


def _named_schemas(value: Any, draft: Draft) -> None:
    _object(value, draft)
    for schema in value.values():
        draft.check(schema)


def _pattern_schemas(value: Any, draft: Draft) -> None:
    _named_schemas(value, draft)
    for pattern in value:
        _regex(pattern, draft)


def _strings(value: Any, draft: Draft) -> None:
    _array(value, draft)
    if draft.is_draft_04:
        _not_empty(value)
    if len({write_compact(item) for item in value}) < len(value):
        raise SchemaError(f"{write_compact(value)} has non-unique elements")
    for item in value:
        _string(item, draft)


def _named_strings(value: Any, draft: Draft) -> None:
    _object(value, draft)
    for names in value.values():
        _strings(names, draft)


def _named_booleans(value: Any, draft: Draft) -> None:
    _object(value, draft)
    for flag in value.values():
        _boolean(flag, draft)


def _type(value: Any, draft: Draft) -> None:
    names = [value] if isinstance(value, str) else value
    if (
        not isinstance(names, list)
        or not names
        or any(not isinstance(name, str) or name not in _TYPES for name in names)
        or len(set(names)) < len(names)
    ):
        raise _any_of(value)


def _schema_or_schemas(value: Any, draft: Draft) -> None:
    if isinstance(value, list):
        if value and all(map(draft.accepts, value)):
            return
    elif draft.accepts(value):
        return
    raise _any_of(value)


def _boolean_or_schema(value: Any, draft: Draft) -> None:
    if not isinstance(value, bool) and not draft.accepts(value):
        raise _any_of(value)


def _dependencies(value: Any, draft: Draft) -> None:
    _object(value, draft)
    for dependency in value.values():
        if isinstance(dependency, list):
            try:
                _strings(dependency, draft)
            except SchemaError:
                raise _any_of(dependency) from None
        elif not draft.accepts(dependency):
            raise _any_of(dependency)


_NUMBERS: Group = {
    "multipleOf": _positive,
    "maximum": _number,
    "exclusiveMaximum": _number,
    "minimum": _number,
    "exclusiveMinimum": _number,
    "maxLength": _count,
    "minLength": _count,
    "maxItems": _count,
    "minItems": _count,
    "uniqueItems": _boolean,
    "maxProperties": _count,
    "minProperties": _count,
    "required": _strings,
    "type": _type,
    "enum": _array,
}
_COMBINATIONS: Group = {"allOf": _schemas, "anyOf": _schemas, "oneOf": _schemas, "not": _schema}
_CONDITIONS: Group = {"if": _schema, "then": _schema, "else": _schema}

_VALIDATION_2020: Group = {
    **_NUMBERS,
    "const": _anything,
    "pattern": _string,
    "maxContains": _count,
    "minContains": _count,
    "dependentRequired": _named_strings,
}
_APPLICATORS_2020: Group = {
    **_COMBINATIONS,
    **_CONDITIONS,
    "prefixItems": _schemas,
    "items": _schema,
    "contains": _schema,
    "additionalProperties": _schema,
    "properties": _named_schemas,
    "patternProperties": _named_schemas,
    "dependentSchemas": _named_schemas,
    "propertyNames": _schema,
}
_CORE_2020: Group = {
    "$id": _matching(_NO_FRAGMENT),
    "$anchor": _matching(_ANCHOR),
    "$comment": _string,
    "$defs": _named_schemas,
    "$vocabulary": _named_booleans,
    "$dynamicRef": _string,
    "$dynamicAnchor": _matching(_ANCHOR),
    "$ref": _string,
    "$schema": _string,
}
_META_DATA: Group = {
    "title": _string,
    "description": _string,
    "deprecated": _boolean,
    "readOnly": _boolean,
    "writeOnly": _boolean,
    "examples": _array,
}
_FORMAT: Group = {"format": _string}
_CONTENT: Group = {
    "contentEncoding": _string,
    "contentMediaType": _string,
    "contentSchema": _schema,
}

_NESTING_06 = (
    "additionalItems additionalProperties allOf anyOf contains definitions dependencies items not "
    "oneOf patternProperties properties propertyNames"
)
_NESTING_07 = _NESTING_06 + " if then else"
_NEW_NESTING = " $defs contentSchema dependentSchemas unevaluatedItems unevaluatedProperties"
_NESTING_2019 = _NESTING_07 + _NEW_NESTING
_NESTING_2020 = (
    _NESTING_2019.replace("additionalItems ", "").replace("dependencies ", "") + " prefixItems"
)

DRAFT_2020_12 = Draft(
    [
        {
            "definitions": _named_schemas,
            "dependencies": _dependencies,
            "$recursiveAnchor": _matching(_ANCHOR),
            "$recursiveRef": _string,
        },
        _CORE_2020,
        _APPLICATORS_2020,
        {"unevaluatedItems": _schema},
        {"unevaluatedProperties": _schema},
        _VALIDATION_2020,
        _META_DATA,
        _FORMAT,
        _CONTENT,
    ],
    _NESTING_2020,
)

_APPLICATORS_2019: Group = dict(_APPLICATORS_2020)
del _APPLICATORS_2019["prefixItems"]
_APPLICATORS_2019.update(
    items=_schema_or_schemas,
    additionalItems=_schema,
    unevaluatedItems=_schema,
    unevaluatedProperties=_schema,
)
_CORE_2019: Group = {
    **_CORE_2020,
    "$anchor": _matching(_ANCHOR_2019),
    "$recursiveRef": _string,
    "$recursiveAnchor": _boolean,
}
del _CORE_2019["$dynamicRef"], _CORE_2019["$dynamicAnchor"]

DRAFT_2019_09 = Draft(
    [
        {"definitions": _named_schemas},
        {"dependencies": _dependencies},
        _CORE_2019,
        _APPLICATORS_2019,
        _VALIDATION_2020,
        _META_DATA,
        _FORMAT,
        _CONTENT,
    ],
    _NESTING_2019,
)

_FLAT_06: Group = {
    **_NUMBERS,
    **_COMBINATIONS,
    "$id": _uri_reference,
    "$schema": _string,
    "$ref": _uri_reference,
    "title": _string,
    "description": _string,
    "pattern": _regex,
    "additionalItems": _schema,
    "items": _schema_or_schemas,
    "contains": _schema,
    "additionalProperties": _schema,
    "definitions": _named_schemas,
    "properties": _named_schemas,
    "patternProperties": _pattern_schemas,
    "dependencies": _dependencies,
    "propertyNames": _schema,
    "format": _string,
    "examples": _array,
    "contentMediaType": _anything,
    "contentEncoding": _anything,
}
DRAFT_06 = Draft([_FLAT_06], _NESTING_06, is_old=True)
DRAFT_07 = Draft(
    [
        {
            **_FLAT_06,
            **_CONDITIONS,
            "$comment": _string,
            "readOnly": _boolean,
            "writeOnly": _boolean,
            "contentMediaType": _string,
            "contentEncoding": _string,
        }
    ],
    _NESTING_07,
    is_old=True,
)
DRAFT_04 = Draft(
    [
        {
            **_NUMBERS,
            **_COMBINATIONS,
            "id": _string,
            "$schema": _string,
            "$ref": _anything,
            "title": _string,
            "description": _string,
            "exclusiveMaximum": _boolean,
            "exclusiveMinimum": _boolean,
            "pattern": _regex,
            "additionalItems": _boolean_or_schema,
            "items": _schema_or_schemas,
            "additionalProperties": _boolean_or_schema,
            "definitions": _named_schemas,
            "properties": _named_schemas,
            "patternProperties": _named_schemas,
            "dependencies": _dependencies,
            "format": _string,
        }
    ],
    _NESTING_2019 + " prefixItems",  # the oldest draft is searched everywhere
    is_old=True,
    is_draft_04=True,
)

_DRAFTS = {
    "draft-04/schema": DRAFT_04,
    "draft-06/schema": DRAFT_06,
    "draft-07/schema": DRAFT_07,
    "draft/2019-09/schema": DRAFT_2019_09,
    "draft/2020-12/schema": DRAFT_2020_12,
    "schema": DRAFT_2020_12,
}


def draft_of(url: Any) -> Draft | None:
    """The draft that ``$schema`` names, ``None`` if it names no known one."""
    found = _URL.match(url) if isinstance(url, str) else None
    return None if found is None else _DRAFTS.get(found[1])
