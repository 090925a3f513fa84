"""References between the parts of a JSON Schema (recipe.md 2.9, phase 2)."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from dsinfer_jax.recipe.meta_schema import Draft, SchemaError
from dsinfer_jax.recipe.uri_references import is_absolute, uri_fault

_NO_BASE = "json-schema:///"
_META_SCHEMAS = (
    "http://json-schema.org/draft-04/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/",
    "https://json-schema.org/draft/2020-12/",
)
_NAMED = (
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
)


class References:
    """Knows the resources and anchors of a schema.

    The constructor raises ``SchemaError`` for references that are no URIs or lead outside, wherever
    they stand; what a fragment points to is looked up only when it is asked for.
    """

    def __init__(self, schema: Any, draft: Draft) -> None:
        self._root = schema
        self._draft = draft
        self._id_keyword = "id" if draft.is_draft_04 else "$id"
        self._resources: dict[str, Any] = {"": schema}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._bases: dict[int, str] = {}
        self._outside: list[tuple[str, str]] = []
        self._walk(schema, "")
        for base, reference in self._outside:
            self._check_resource(base, reference)

    def target(self, schema: dict[str, Any], reference: str) -> Any:
        """What ``reference``, a keyword of ``schema``, refers to; ``True`` for a meta-schema."""
        base = self._bases.get(id(schema), "")
        address, fragment = urldefrag(reference)
        if address:
            address = urldefrag(urljoin(base, reference))[0] if base else address
        else:
            address = base
        if address.startswith(_META_SCHEMAS) and address not in self._resources:
            return True
        if address not in self._resources:
            shown = address if is_absolute(address) else _NO_BASE + address.lstrip("/")
            raise SchemaError(
                f"Resource '{shown}' is not present in a registry and "
                "retrieving it failed: Retrieving external resources is not supported once the "
                "registry is populated"
            )
        resource = self._resources[address]
        if not fragment:
            return resource
        if fragment.startswith("/"):
            return _pointed_to(resource, fragment)
        if (address, fragment) not in self._anchors:
            raise SchemaError(f"Anchor '{fragment}' does not exist")
        return self._anchors[address, fragment]

    def _walk(self, schema: Any, base: str) -> None:
        if not isinstance(schema, dict):
            return
        own = schema.get(self._id_keyword)
        if isinstance(own, str):
            _check_uri(own)
            if own.startswith("#"):  # the anchors of old drafts
                self._anchors[base, own[1:]] = schema
            else:
                base = urldefrag(urljoin(base, own) if base else own)[0]
                self._resources[base] = schema
        self._bases[id(schema)] = base
        for keyword in ("$anchor", "$dynamicAnchor"):
            if self._draft.knows(keyword) and isinstance(schema.get(keyword), str):
                self._anchors[base, schema[keyword]] = schema
        if isinstance(schema.get("$schema"), str):
            _check_uri(schema["$schema"])
        if isinstance(schema.get("$dynamicRef"), str) and self._draft.knows("$dynamicRef"):
            _check_uri(schema["$dynamicRef"])
        reference = schema.get("$ref")
        if isinstance(reference, str):
            _check_uri(reference)
            if reference and not reference.startswith("#"):
                self._outside.append((base, reference))
        for child in self._children(schema):
            self._walk(child, base)

    def _children(self, schema: dict[str, Any]) -> list[Any]:
        """The schemas directly below ``schema``, by keyword in the order of its keys."""
        children: list[Any] = []
        for keyword, value in schema.items():
            if keyword not in self._draft.nesting:
                continue
            if keyword in _NAMED and isinstance(value, dict):
                children += value.values()
            elif isinstance(value, list):
                children += value
            else:
                children.append(value)
        return children

    def _check_resource(self, base: str, reference: str) -> None:
        address = urljoin(base, reference) if base else reference
        resource = urldefrag(address)[0]
        if resource in self._resources or resource.startswith(_META_SCHEMAS):
            return
        if is_absolute(resource):
            raise SchemaError(
                f"Resource '{resource}' is not present in a registry and retrieving it failed: "
                f"Retrieval is disabled, cannot fetch {resource}"
            )
        raise SchemaError(
            f"Resource '{address}' is not present in a registry and retrieving it failed: "
            "No base URI is available"
        )


def _check_uri(reference: str) -> None:
    fault = uri_fault(reference)
    if fault is not None:
        raise SchemaError(f"Invalid URI reference '{reference}': {fault}")


def _pointed_to(value: Any, fragment: str) -> Any:
    pointer = unquote(fragment)
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            if not (name.isascii() and name.isdigit()):
                raise SchemaError(f"Failed to parse array index '{name}' in pointer '{pointer}'")
            found = int(name) < len(value)
            value = value[int(name)] if found else None
        else:
            found = isinstance(value, dict) and name in value
            value = value[name] if found else None
        if not found:
            raise SchemaError(f"Pointer '{pointer}' does not exist")
    return value
