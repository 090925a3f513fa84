"""The check of a JSON Schema that is not strict (recipe.md 2.9)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from dsinfer_jax.recipe.json_values import write_compact, write_spaced
from dsinfer_jax.recipe.meta_schema import DRAFT_2020_12, Draft, SchemaError, draft_of
from dsinfer_jax.recipe.regular_expressions import is_regular_expression
from dsinfer_jax.recipe.schema_references import References
from dsinfer_jax.recipe.uri_references import uri_fault
from dsinfer_jax.recipe.values import conversion_error

REMEMBERED_SCHEMAS = 1024

_ONE = ("contains", "items", "not", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
_MANY = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("dependencies", "dependentSchemas")


def check_schema(schema: Any, prefix: str) -> None:
    """Raise ``ConversionError`` with ``prefix`` and the first fault of ``schema``."""
    fault = schema_fault(write_spaced(schema))
    if fault is not None:
        raise conversion_error(prefix + fault)


@lru_cache(maxsize=REMEMBERED_SCHEMAS)
def schema_fault(text: str) -> str | None:
    """The first fault of the schema in ``text``; clients send the same tools in every request."""
    schema = json.loads(text)
    try:
        named = schema.get("$schema") if isinstance(schema, dict) else None
        draft = draft_of(named) or DRAFT_2020_12
        draft.check(schema)
        if named and draft_of(named) is None:
            raise _unknown_draft(named)
        _Compiler(schema, draft).compile()
    except SchemaError as error:
        return str(error)
    return None


def _unknown_draft(name: str) -> SchemaError:
    fault = uri_fault(name)
    if fault is not None:
        return SchemaError(f"Invalid URI reference '{name}': {fault}")
    return SchemaError(
        f"Unknown meta-schema: '{name}'. Custom meta-schemas must be registered in the registry "
        "before use"
    )


class _Compiler:
    """Phase 2: looks at what takes part in validation only, keys in order."""

    def __init__(self, schema: Any, draft: Draft) -> None:
        self._schema = schema
        self._references = References(schema, draft)
        self._draft = draft
        self._compiled: set[int] = set()

    def compile(self) -> None:
        """Raise ``SchemaError`` for the first fault."""
        self._compile(self._schema)

    def _compile(self, schema: Any) -> None:
        if not isinstance(schema, dict):
            if not isinstance(schema, bool):
                shown = write_compact(schema)
                raise SchemaError(f'{shown} is not of types "boolean", "object"')
            return
        if id(schema) in self._compiled:
            return
        self._compiled.add(id(schema))
        if self._draft.is_old and "$ref" in schema:
            if not isinstance(schema["$ref"], str):
                raise _no_string(schema["$ref"])
            self._compile(self._references.target(schema, schema["$ref"]))
            return
        for keyword, value in schema.items():
            if self._draft.knows(keyword):
                self._compile_keyword(schema, keyword, value)

    def _compile_keyword(self, schema: dict[str, Any], keyword: str, value: Any) -> None:
        if keyword == "pattern":
            _check_regex(value, value)
        elif keyword in ("contentMediaType", "contentEncoding"):
            if not isinstance(value, str):
                raise _no_string(value)
        elif keyword in ("$ref", "$dynamicRef"):
            self._compile(self._references.target(schema, value))
        elif keyword in ("properties", "patternProperties"):
            if schema.get("additionalProperties", True) is True:
                self._compile_properties(keyword, value)
        elif keyword == "additionalProperties":
            if value is not True:
                for name in ("properties", "patternProperties"):
                    self._compile_properties(name, schema.get(name) or {})
            self._compile(value)
        elif keyword == "if":
            if "then" in schema or "else" in schema:
                for name in ("if", "then", "else"):
                    self._compile(schema.get(name, True))
        elif keyword == "additionalItems":
            if isinstance(schema.get("items"), list):
                self._compile(value)
        elif keyword in _MANY and isinstance(value, list):
            for child in value:
                self._compile(child)
        elif keyword in _NAMED:
            for child in value.values():
                if not isinstance(child, list):
                    self._compile(child)
        elif keyword in _ONE:
            self._compile(value)

    def _compile_properties(self, keyword: str, children: dict[str, Any]) -> None:
        for name, child in children.items():
            if keyword == "patternProperties":
                _check_regex(name, child)
            self._compile(child)


def _no_string(value: Any) -> SchemaError:
    return SchemaError(f'{write_compact(value)} is not of type "string"')


def _check_regex(pattern: str, shown: Any) -> None:
    """Refuse a bad pattern; the reference names the sub-schema for a bad key."""
    if not is_regular_expression(pattern):
        raise SchemaError(f'{write_compact(shown)} is not a "regex"')
