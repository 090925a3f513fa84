"""The V4.1 markup of tool calls as a grammar, with every value bound to its schema (recipe.md 3.2).

A parameter says `string="true"` and gives raw text, or `string="false"` and gives JSON that is no
string; the schema decides which, and both if it allows both. Parameters come in the order of the
schema, required ones always, undeclared ones only where nothing is declared. What a schema says of
raw text beyond lengths, `enum` and `const` is refused.
"""

import json
from collections.abc import Sequence
from typing import Any

from dsinfer_jax.engine.grammar_text import JSON_OPTIONS
from dsinfer_jax.engine.structured_output import GrammarError

_NO_STRING = ["number", "boolean", "null", "object", "array"]
_ABOUT_TEXT = ("pattern", "format", "contentEncoding", "contentMediaType")
_COMBINED = ("allOf", "not", "if", "then", "else", "oneOf")
_DEEPEST_REFERENCE = 32
_TEXT_ENDS = "<\\/"  # the first characters of the closing tag are the end of raw text


def tool_grammar(tools: str, marker: int, after_marker: bool) -> str:
    """A calls block in Lark. Line breaks and what follows are one terminal: lexing is greedy.

    Args:
        tools: declarations as JSON: a list of `{"type": "function", "function": {"name", ...}}`.
        marker: id of the marker token.
        after_marker: whether the block's opening tag is already in the prompt; otherwise the
            grammar starts behind the marker token of that tag.

    Raises:
        GrammarError: the declarations cannot be read, or a schema asks for what is not enforced.
    """
    try:
        functions = [tool["function"] for tool in json.loads(tools)]
        names = [str(function["name"]) for function in functions]
    except (ValueError, TypeError, KeyError) as error:
        raise GrammarError(
            f"the tools cannot be read ({error!r}); give a JSON list of functions with names"
        ) from error
    if not names:
        raise GrammarError("the list of tools is empty; give at least one, or no constraint")
    head = "" if after_marker else _text(" calls>\n") + " "
    lines = [
        f'start: {head}"<" marker invoke ("\\n<" marker invoke)* "\\n</" marker " calls>"',
        f"marker: <[{marker}]>",
        "invoke: " + " | ".join(f"invoke_{place}" for place in range(len(names))),
    ]
    for place, function in enumerate(functions):
        lines += _Invocation(place, function).lines
    return "\n".join(lines) + "\n"


class _Invocation:
    """The rules of one tool, in `lines`."""

    def __init__(self, number: int, function: dict[str, Any]) -> None:
        self._number, self._tool = number, function["name"]
        self._schema = function.get("parameters") or {}
        properties = self._schema.get("properties") or {}
        required = set(self._schema.get("required") or ())
        if not required <= set(properties):
            missing = min(required - set(properties))
            raise self._refused(missing, "is required but not declared; add it to the properties")
        opening = _text(f' invoke name="{self._tool}">')
        self.lines = [f'invoke_{number}: {opening} arguments_{number} "\\n</" marker " invoke>"']
        if properties or self._schema.get("additionalProperties") is False:
            self._sequence(list(properties.items()), required)
        else:
            self._free_parameters()

    def _sequence(self, properties: Sequence[tuple[str, Any]], required: set[str]) -> None:
        """Parameters in order; a call with none of them has an empty line."""
        number, count = self._number, len(properties)

        def rest(place: int) -> str:
            return f" rest_{number}_{place}" if place < count else ""

        for place, (name, schema) in enumerate(properties):
            parameter = f'"\\n<" marker parameter_{number}_{place}'
            self.lines.append(f"parameter_{number}_{place}: {self._parameter(name, schema)}")
            if place:
                one = f"({parameter})" + ("" if name in required else "?")
                self.lines.append(f"rest_{number}_{place}: {one}{rest(place + 1)}")
        needed = [place for place, (name, _) in enumerate(properties) if name in required]
        firsts = range(needed[0] + 1 if needed else count)
        starts = [f'"\\n<" marker parameter_{number}_{place}{rest(place + 1)}' for place in firsts]
        if not needed:
            starts.append('"\\n"')
        self.lines.append(f"arguments_{number}: " + " | ".join(starts))

    def _free_parameters(self) -> None:
        number = self._number
        # by the official rules a name ends at a blank and is not escaped (recipe.md 5.1)
        name = r'" parameter name=\"" /[^\x00-\x20"<>\\]+"/'
        self.lines += [
            f'arguments_{number}: "\\n" | ("\\n<" marker {name} value_{number})+',
            f"value_{number}: {_either(_raw_text(0, None), _json_value({'type': _NO_STRING}))}",
        ]

    def _parameter(self, name: str, schema: Any) -> str:
        strings, others = self._split(name, schema, _DEEPEST_REFERENCE)
        raw = None
        if strings:
            raw = "(" + " | ".join(self._raw(name, one) for one in strings) + ")"
        value = None
        if others:
            merged = others[0] if len(others) == 1 else {"anyOf": others}
            kept = {
                key: self._schema[key] for key in ("$defs", "definitions") if key in self._schema
            }
            value = _json_value({**kept, **merged})
        if raw is None and value is None:
            raise self._refused(name, "has a schema that nothing satisfies")
        opening = _text(f' parameter name="{name}"')
        return f"{opening} ({_either(raw, value)})"

    def _split(self, name: str, schema: Any, depth: int) -> tuple[list[Any], list[Any]]:
        """A schema as alternatives that are strings, and alternatives that are none."""
        if schema is True or schema == {}:
            return [{}], [{"type": _NO_STRING}]
        if not isinstance(schema, dict):
            raise self._refused(name, "has no schema that can be read")
        if "$ref" in schema:
            if depth == 0:
                raise self._refused(name, "refers to itself without end")
            return self._split(name, self._target(name, schema["$ref"]), depth - 1)
        if "anyOf" in schema:
            parts = [self._split(name, one, depth - 1) for one in schema["anyOf"]]
            return [one for part in parts for one in part[0]], [
                one for part in parts for one in part[1]
            ]
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            words = [one for one in values if isinstance(one, str)]
            rest = [one for one in values if not isinstance(one, str)]
            return [{"enum": words}] if words else [], [{"enum": rest}] if rest else []
        kinds = schema.get("type", ["string", *_NO_STRING])
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        rest = [kind for kind in kinds if kind != "string"]
        if "string" in kinds:
            for key in _COMBINED:
                if key in schema:
                    raise self._refused(name, f"has {key} on a value that may be a text")
        return [schema] if "string" in kinds else [], [{**schema, "type": rest}] if rest else []

    def _raw(self, name: str, schema: Any) -> str:
        if "enum" in schema:
            return "(" + " | ".join(_text(f"{word}</") for word in schema["enum"]) + ")"
        for key in _ABOUT_TEXT:
            if key in schema:
                raise self._refused(name, f"has {key}, which is not enforced on raw text")
        return _raw_text(schema.get("minLength", 0), schema.get("maxLength"))

    def _target(self, name: str, reference: Any) -> Any:
        target: Any = self._schema
        parts = str(reference).split("/")
        if parts[0] != "#":
            raise self._refused(name, f"refers to {reference!r}, which is not in its own schema")
        for part in parts[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or key not in target:
                raise self._refused(name, f"refers to {reference!r}, which is not there")
            target = target[key]
        return target

    def _refused(self, name: str, reason: str) -> GrammarError:
        return GrammarError(f"parameter {name!r} of the tool {self._tool!r} {reason}")


def _either(raw: str | None, value: str | None) -> str:
    """What follows a parameter's name, up to the end of its closing tag."""
    ends = 'marker " parameter>"'
    texts = [f'" string=\\"true\\">" {raw} {ends}'] if raw else []
    values = [f'" string=\\"false\\">" {value} "</" {ends}'] if value else []
    return " | ".join([*texts, *values])


def _raw_text(shortest: int, longest: int | None) -> str:
    """Any text of so many characters, with the first characters of the closing tag."""
    if shortest == 0 and longest is None:
        return f"/(?s:.*){_TEXT_ENDS}/"
    return f"/(?s:.{{{shortest},{'' if longest is None else longest}}}){_TEXT_ENDS}/"


def _json_value(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS})


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
