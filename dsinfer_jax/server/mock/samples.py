"""A value that fits a JSON Schema, for tool arguments and structured output of the mock."""

from __future__ import annotations

from typing import Any

DEEP = 4  # levels after which optional members and items are left out: recursive schemas end
DEEPEST = 16  # levels after which a schema has no end
TEXT = "sämple 例"  # not ASCII, so that clients are tried with characters of several bytes


def sample(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """A value for the common keywords of a schema; null where nothing is said.

    Args:
        schema: a schema, or part of `root`.
        root: where `$ref` looks things up.
    """
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        return sample(_at(root, schema["$ref"]), root, depth + 1) if depth < DEEPEST else None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if schema.get(keyword):
            return sample(schema[keyword][0], root, depth)
    kind = schema.get("type", "object" if "properties" in schema else None)
    return _of_type(kind[0] if isinstance(kind, list) else kind, schema, root, depth)


def _of_type(kind: Any, schema: dict[str, Any], root: Any, depth: int) -> Any:
    if kind == "object":
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        names = required if depth >= DEEP else properties
        return {name: sample(properties.get(name), root, depth + 1) for name in names}
    if kind == "array":
        number = max(1 if depth < DEEP else 0, schema.get("minItems", 0))
        return [sample(schema.get("items"), root, depth + 1) for _ in range(number)]
    if kind == "string":
        return TEXT.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("exclusiveMinimum", 41) + 1)
    return True if kind == "boolean" else None


def _at(root: Any, pointer: str) -> Any:
    """What a local reference such as `#/$defs/a` points at; None if there is nothing."""
    found = root
    for step in pointer.removeprefix("#").strip("/").split("/"):
        if step:
            found = found.get(step) if isinstance(found, dict) else None
    return found
