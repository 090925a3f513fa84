"""Tools of Responses: declared, loaded by a search, and written back (recipe.md 2.12)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dsinfer_jax.recipe.apply_patch import (
    APPLY_PATCH_DESCRIPTION,
    APPLY_PATCH_DESCRIPTION_V4,
    APPLY_PATCH_PARAMETERS,
)
from dsinfer_jax.recipe.conversation import ToolDefinition, new_tool
from dsinfer_jax.recipe.json_values import write_compact
from dsinfer_jax.recipe.tool_declarations import check_name
from dsinfer_jax.recipe.values import conversion_error

Body = dict[str, Any]

CUSTOM_TOOL = "apply_patch"
TOOL_SEARCH = "tool_search"
WEB_SEARCHES = ("web_search", "web_search_2025_08_26")


def full_name(namespace: str, name: str, is_v41: bool) -> str:
    """The name under which the model knows a function of a namespace."""
    return f"{namespace}{'::' if is_v41 else '__'}{name}"


class DeclaredTools:
    """The function tools that lists of declarations stand for.

    ``names`` maps the names of namespace functions to (namespace, local name). A name that is
    taken gets a number at its end.
    """

    def __init__(self, rejects_search: bool, is_v41: bool) -> None:
        self._rejects_search = rejects_search
        self._is_v41 = is_v41
        self._place = "tools"
        self._deferred = False
        self._plain_names: set[str] = set()
        self.tools: list[ToolDefinition] = []
        self.names: dict[str, tuple[str, str]] = {}

    def read(self, declarations: Sequence[Body]) -> None:
        """Add the tools of the request; ``ConversionError`` for a bad one."""
        self._read(declarations)

    def load(self, declarations: Sequence[Body], place: str) -> list[ToolDefinition]:
        """The tools that a search found; ``place`` is the path of the list in messages."""
        known = len(self.tools)
        self._place, self._deferred = place, True
        self._read(declarations)
        found = self.tools[known:]
        del self.tools[known:]
        return found

    def read_names(self, declarations: Sequence[Body]) -> dict[str, tuple[str, str]]:
        """``names`` of the request; only functions and namespaces are checked."""
        self._read(declarations, names_only=True)
        return self.names

    def _read(self, declarations: Sequence[Body], names_only: bool = False) -> None:
        self._plain_names.update(t["name"] for t in declarations if t["type"] == "function")
        for index, tool in enumerate(declarations):
            kind = tool["type"]
            place = f"{self._place}[{index}]"
            if kind == "function":
                check_name(tool["name"], f"{place}.name")
                self._add(tool, tool["name"], tool.get("description"))
            elif kind == "namespace":
                self._read_namespace(tool, place)
            elif names_only:
                continue
            elif kind == "custom":
                self._read_custom(tool)
            elif kind == TOOL_SEARCH:
                self._read_search(tool)
            elif kind in WEB_SEARCHES and self._rejects_search:
                raise conversion_error("Server tools are not supported")

    def _add(self, tool: Body, name: str, description: str | None) -> None:
        self.tools.append(
            new_tool(
                name,
                description,
                tool.get("parameters"),
                tool.get("strict"),
                self._deferred,
            )
        )

    def _read_namespace(self, tool: Body, place: str) -> None:
        namespace, about = tool["name"], tool.get("description")
        check_name(namespace, f"{place}.name")
        local_names: set[str] = set()
        for index, function in enumerate(tool["tools"]):
            inner = f"{place}.tools[{index}]"
            name = function["name"]
            if function["type"] == "custom":
                raise conversion_error(
                    "Currently custom tools are not allowed inside a namespace. "
                    f"Found custom tool '{name}' in {inner}."
                )
            check_name(name, f"{inner}.name")
            if name in local_names:
                raise conversion_error("Tool names within a namespace must be unique.")
            local_names.add(name)
            description = function.get("description")
            if about and self._is_v41:
                description = f"{about}\n{description or ''}"
            known_as = self._free_name(full_name(namespace, name, self._is_v41))
            self._add(function, known_as, description)
            self.names[known_as] = (namespace, name)

    def _free_name(self, name: str) -> str:
        number = 0
        free = name
        while free in self.names or free in self._plain_names:
            number += 1
            free = f"{name}_{number}"
        return free

    def _read_custom(self, tool: Body) -> None:
        if tool["name"] != CUSTOM_TOOL:
            raise conversion_error(
                f"Unsupported custom tool: '{tool['name']}'. Only '{CUSTOM_TOOL}' is supported."
            )
        self.tools.append(
            new_tool(
                CUSTOM_TOOL,
                APPLY_PATCH_DESCRIPTION if self._is_v41 else APPLY_PATCH_DESCRIPTION_V4,
                APPLY_PATCH_PARAMETERS,
                None,
                self._deferred,
            )
        )

    def _read_search(self, tool: Body) -> None:
        if tool.get("execution") == "client" and self._is_v41:
            self._add(tool, TOOL_SEARCH, tool.get("description"))


def echoed_tools(declarations: Sequence[Body]) -> str:
    """The declarations as responses report them, compact JSON; unknown kinds are left out."""
    shown = [_shown(tool) for tool in declarations]
    return write_compact([tool for tool in shown if tool is not None])


def loaded_tools(declarations: Sequence[Body], place: str) -> str:
    """The result text of a tool search: the tools it found, compact JSON."""
    return write_compact([tool for found in declarations for tool in _flattened(found, place)])


def _flattened(tool: Body, place: str) -> Iterator[Body]:
    if tool["type"] == "namespace":
        namespace = {"name": tool["name"], "description": tool.get("description") or ""}
        for function in tool["tools"]:
            yield {**_function(function), "namespace": namespace}
        return
    shown = _shown(tool)
    if shown is None:
        raise conversion_error(
            f"{place}: the enum variant ResponsesTool::Unsupported cannot be serialized"
        )
    yield shown


def _function(tool: Body) -> Body:
    if tool["type"] == "custom":
        return {"type": "custom", "name": tool["name"]}
    return _picked(tool, "function", "name", "description", "parameters", "strict")


def _picked(tool: Body, kind: str, *names: str) -> Body:
    return {"type": kind, **{name: tool.get(name) for name in names}}


def _shown(tool: Body) -> Body | None:
    kind = tool["type"]
    get = tool.get
    if kind in ("function", "custom"):
        return _function(tool)
    if kind == "namespace":
        functions = [_function(function) for function in tool["tools"]]
        return {
            "type": kind,
            "name": tool["name"],
            "description": get("description"),
            "tools": functions,
        }
    if kind in WEB_SEARCHES:
        location = get("user_location")
        if location is not None:
            names = ("city", "country", "region", "timezone")
            location = {name: location.get(name) for name in names}
        size = get("search_context_size")
        return {"type": kind, "search_context_size": size, "user_location": location}
    if kind == TOOL_SEARCH:
        return _picked(tool, kind, "execution", "description", "parameters")
    return None
