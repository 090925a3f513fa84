"""What conversion leaves out of a request without a word, counted by place (an extension).

The official rules ignore unknown settings, drop items that they do not know and write placeholders
for what they cannot show. Clients see nothing of it; an operator can see it here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsinfer_jax.recipe.conversation_request import ConversationRequest
from dsinfer_jax.recipe.conversion_options import ConversionOptions, ModelVersion
from dsinfer_jax.recipe.convert_chat import convert_chat
from dsinfer_jax.recipe.convert_messages import BILLING_LINE, convert_messages
from dsinfer_jax.recipe.convert_responses import convert_responses
from dsinfer_jax.recipe.explain import REQUESTS, Dialect
from dsinfer_jax.recipe.request_body import read_request

CONVERTERS = {
    "chat": convert_chat,
    "responses": convert_responses,
    "messages": convert_messages,
}
# Below these keys everything belongs to the user: nothing there is a setting.
_OPAQUE = frozenset(("parameters", "schema", "input_schema", "arguments", "metadata"))
_KNOWN_ITEMS = frozenset(
    (
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "tool_search_call",
        "tool_search_output",
    )
)
_KNOWN_TOOLS = frozenset(("function", "namespace", "custom", "tool_search"))
# Read by the server or by the client that comes back, not by conversion.
_ELSEWHERE = frozenset(("previous_response_id", "store", "id", "status", "signature", "is_error"))


@dataclass(slots=True)
class RequestReport:
    """Counters by place; ``[]`` in a place stands for any index.

    ``ignored``: settings that change nothing. ``dropped``: parts that the model does not see.
    ``replaced``: parts for which a placeholder stands in the prompt.
    """

    ignored: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)

    def add(self, other: RequestReport) -> None:
        """Add the counters of another request to these."""
        self.ignored.update(other.ignored)
        self.dropped.update(other.dropped)
        self.replaced.update(other.replaced)

    def to_json(self) -> str:
        """The three tables as compact JSON."""
        tables = {"ignored": self.ignored, "dropped": self.dropped, "replaced": self.replaced}
        return json.dumps(tables, separators=(",", ":"))


def convert_with_report(
    body: bytes | str | dict[str, Any],
    *,
    dialect: Dialect = "chat",
    options: ConversionOptions | None = None,
) -> tuple[ConversationRequest, RequestReport]:
    """Read and convert a request, and count what was left out.

    Raises what reading and converting raise. Slower than plain conversion: every access to the
    body is watched.
    """
    options = options or ConversionOptions()
    checked = read_request(body, REQUESTS[dialect]._shape)
    watched = _watch(checked)
    request = CONVERTERS[dialect](watched, options)
    report = RequestReport()
    is_v4 = request.model_version is ModelVersion.DeepseekV4Pro
    _count_parts(dialect, checked, is_v4, report)
    for place in _unread(watched, ""):
        report.ignored[place] += 1
    return request, report


class _Watched(dict[str, Any]):
    """A dict that knows which of its keys were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def _watch(value: Any) -> Any:
    if isinstance(value, dict):
        return _Watched(
            {
                k: v if k in _OPAQUE or _is_tool_input(value, k) else _watch(v)
                for k, v in value.items()
            }
        )
    return [_watch(item) for item in value] if isinstance(value, list) else value


def _is_tool_input(holder: dict[str, Any], key: str) -> bool:
    return key == "input" and holder.get("type") in ("tool_use", "server_tool_use")


def _unread(value: Any, place: str) -> Iterator[str]:
    """Places of keys that nobody asked for."""
    if isinstance(value, list):
        for item in value:
            yield from _unread(item, f"{place}[]")
    elif isinstance(value, _Watched):
        # An item or block that nobody looked into is counted as a whole, by its kind.
        if value.asked <= {"type"} and place:
            return
        for key, child in value.items():
            inner = f"{place}.{key}" if place else key
            if key in value.asked:
                yield from _unread(child, inner)
            elif key not in _ELSEWHERE and child is not None:
                yield inner


def _count_parts(dialect: Dialect, body: Any, is_v4: bool, report: RequestReport) -> None:
    """Items, tools and blocks that the model does not see, by the rules of the dialect."""
    for tool in body.get("tools") or ():
        kind = tool.get("type", "function")
        if kind not in _KNOWN_TOOLS or (kind == "tool_search" and is_v4):
            report.dropped[f"tools[]: {kind}"] += 1
    if dialect == "responses" and isinstance(body.get("input"), list):
        for item in body["input"]:
            if item["type"] not in _KNOWN_ITEMS or (is_v4 and item["type"].startswith("tool_s")):
                report.dropped[f"input[]: {item['type']}"] += 1
            if item.get("encrypted_content"):
                report.dropped["input[].encrypted_content"] += 1
    if dialect == "messages":
        system = body.get("system")
        if isinstance(system, list) and system and system[0]["text"].startswith(BILLING_LINE):
            report.dropped["system[]: billing line"] += 1
    for kind in _blocks(body):
        if kind in ("document", "input_file") or (
            is_v4 and kind in ("image", "image_url", "input_image", "file")
        ):
            report.replaced[kind] += 1
        elif kind in ("server_tool_use", "web_search_tool_result"):
            report.dropped[kind] += 1


def _blocks(value: Any) -> Iterator[str]:
    """Kinds of all content blocks."""
    if isinstance(value, list):
        for item in value:
            yield from _blocks(item)
    elif isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str):
            yield kind
        for key in ("messages", "input", "content", "output"):
            if not _is_tool_input(value, key):
                yield from _blocks(value.get(key))
