"""Rebuilding the schema of a strict tool or a strict answer format (recipe.md 2.10).

Reading comes first (types of all known keywords, in document order), then the rules for objects.
The result holds the known keywords only, in a fixed order.
"""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.json_values import json_value
from dsinfer_jax.recipe.reading import (
    BodyError,
    Reader,
    Record,
    Tagged,
    choice,
    kind_of,
    optional,
    read_boolean,
    read_string,
    required,
    sequence_of,
    variant,
    wrong_kind,
)
from dsinfer_jax.recipe.values import conversion_error

Schema = dict[str, Any]

_LIMITS = (
    "const",
    "default",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
)
# Kept keywords by kind, in the order in which they are written.
_KEPT = {
    "string": ("type", "description", "pattern", "format", "enum"),
    "number": ("type", "description", *_LIMITS),
    "integer": ("type", "description", *_LIMITS),
    "boolean": ("type", "description"),
    "null": ("type", "description"),
}


def normalise_tool_parameters(schema: Any) -> Schema:
    """The parameters of a strict tool; an object without properties is allowed at the top."""
    rebuilt = _normalise(schema, "Invalid tool parameters schema : ", may_be_empty=True)
    if rebuilt.get("type") != "object":
        raise conversion_error("The top level of the function parameters schema must be an object.")
    return rebuilt


def normalise_response_schema(schema: Any) -> Schema:
    """The schema of a strict answer format."""
    rebuilt = _normalise(schema, "Invalid json schema: ", may_be_empty=False)
    if rebuilt.get("type") != "object":
        raise conversion_error("The top level of the json schema must be an object.")
    return rebuilt


def _normalise(schema: Any, prefix: str, may_be_empty: bool) -> Schema:
    try:
        read = _read_schema(json_value(schema))  # readers change what they read
    except BodyError as error:
        raise conversion_error(f"{prefix}{error}") from None
    if read.get("type") == "object":
        return _rebuild_object(read, may_be_empty)
    return _rebuild(read)


def _read_schema(value: Any) -> Schema:
    if type(value) is dict:
        if "type" in value:
            if type(value["type"]) is not list:
                return _KIND(value)
            return _read_fields(value, type=_read_scalar_kinds, description=_read_description)
        if "anyOf" in value:
            return _read_fields(value, anyOf=_read_alternatives, description=_read_description)
        if "$ref" in value:
            return _read_fields(value, **{"$ref": read_string})
    raise BodyError("one of `type`, `anyOf`, `$ref` field is required")


def _read_fields(value: Schema, **readers: Reader) -> Schema:
    for name, reader in readers.items():
        try:
            if name in value:
                value[name] = reader(value[name])
        except BodyError as error:
            raise BodyError(f"field `{name}`: {error}") from None
    return value


def _read_description(value: Any) -> str | None:
    return None if value is None else read_string(value)


def _read_number(value: Any) -> int | float:
    if type(value) is int or type(value) is float:
        return value
    raise wrong_kind(value, "a JSON number")


def _read_i64(value: Any) -> int:
    if type(value) is not int:
        raise wrong_kind(value, "i64")
    if not -(1 << 63) <= value < 1 << 63:
        raise BodyError(f"invalid value: {kind_of(value)}, expected i64")
    return value


def _read_schemas(value: Any) -> dict[str, Schema]:
    if type(value) is not dict:
        raise wrong_kind(value, "a map")
    for name, schema in value.items():
        value[name] = _read_schema(schema)
    return value


def _scalar(name: str, number: Reader) -> Record:
    limits = {limit: optional(number) for limit in _LIMITS}
    return variant("JsonSchemaType", name, description=optional(read_string), **limits)


_read_scalar_kinds = sequence_of(choice("string", "number", "integer", "boolean", "null"))
_KIND = Tagged(
    "JsonSchemaType",
    "type",
    {
        "object": variant(
            "JsonSchemaType",
            "Object",
            properties=optional(_read_schemas),
            additionalProperties=optional(read_boolean),
            required=optional(sequence_of(read_string)),
            description=optional(read_string),
            **{"$def": optional(_read_schemas)},
        ),
        "string": variant(
            "JsonSchemaType",
            "String",
            description=optional(read_string),
            pattern=optional(read_string),
            format=optional(choice("email", "hostname", "ipv4", "ipv6", "uuid")),
            enum=optional(sequence_of(read_string)),
        ),
        "number": _scalar("Number", _read_number),
        "integer": _scalar("Integer", _read_i64),
        "boolean": variant("JsonSchemaType", "Boolean", description=optional(read_string)),
        "array": variant(
            "JsonSchemaType",
            "Array",
            items=required(_read_schema),
            description=optional(read_string),
        ),
        "null": variant("JsonSchemaType", "Null", description=optional(read_string)),
    },
)
_read_alternatives = sequence_of(_KIND)


def _rebuild(schema: Schema) -> Schema:
    kind = schema.get("type")
    if kind == "object":
        return _rebuild_object(schema, may_be_empty=False)
    if kind == "array":
        rebuilt = {"type": "array", "items": _rebuild(schema["items"])}
        return _with_description(rebuilt, schema)
    if isinstance(kind, list):
        return _with_description({"type": kind}, schema)
    if kind is not None:
        return {name: schema[name] for name in _KEPT[kind] if schema.get(name) is not None}
    if "anyOf" in schema:
        return _with_description({"anyOf": [_rebuild(s) for s in schema["anyOf"]]}, schema)
    return {"$ref": schema["$ref"]}


def _rebuild_object(schema: Schema, may_be_empty: bool) -> Schema:
    properties = schema.get("properties") or {}
    if not properties and not may_be_empty:
        raise conversion_error("An object with no properties is not allowed.")
    rebuilt: Schema = {"type": "object"}
    rebuilt["properties"] = {name: _rebuild(child) for name, child in properties.items()}
    if schema.get("required") is not None:
        _check_required(schema["required"], properties)
    if schema.get("additionalProperties"):
        raise conversion_error("additionalProperties should not be true")
    rebuilt["additionalProperties"] = False
    rebuilt["required"] = list(properties)
    _with_description(rebuilt, schema)
    definitions = schema.get("$def")
    if definitions is not None:
        rebuilt["$def"] = {name: _rebuild(child) for name, child in definitions.items()}
    return rebuilt


def _check_required(names: list[str], properties: Schema) -> None:
    seen: set[str] = set()
    for name in names:
        if name not in properties:
            raise conversion_error(f"Required property '{name}' not found in object")
        if name in seen:
            raise conversion_error(f"Duplicate required property '{name}'")
        seen.add(name)
    if len(seen) != len(properties):
        raise conversion_error("Required properties must match all properties in the object")


def _with_description(rebuilt: Schema, schema: Schema) -> Schema:
    if schema.get("description") is not None:
        rebuilt["description"] = schema["description"]
    return rebuilt
