"""The output items of the Responses dialect (recipe.md 5.6)."""

from __future__ import annotations

from enum import Enum

from dsinfer_jax.recipe.json_text import JsonSyntaxError, read_json
from dsinfer_jax.recipe.json_values import quote, write_compact


class ItemKind(Enum):
    """The type of an item and the prefix of its id."""

    REASONING = ("reasoning", "rs")
    MESSAGE = ("message", "msg")
    FUNCTION_CALL = ("function_call", "fc")
    CUSTOM_TOOL_CALL = ("custom_tool_call", "ctc")
    TOOL_SEARCH_CALL = ("tool_search_call", "tsc")

    def __init__(self, type_name: str, id_prefix: str) -> None:
        self.type_name = type_name
        self.id_prefix = id_prefix


class OutputItem:
    """One item that grows: the text of a message or of reasoning, or the input of a call."""

    __slots__ = (
        "call_id",
        "has_part",
        "id",
        "index",
        "kind",
        "logprobs",
        "name",
        "namespace",
        "parts",
        "phase",
        "placeholder",
        "status",
    )

    def __init__(self, kind: ItemKind, response_id: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.id = f"{kind.id_prefix}_{response_id}_{index}"
        self.placeholder = f"{response_id}-{index}"  # of the encrypted reasoning
        self.status = "in_progress"
        self.phase = "final_answer"
        self.has_part = False
        self.parts: list[str] = []
        self.logprobs: list[str] = []
        self.call_id = ""
        self.name = ""
        self.namespace: str | None = None

    def copy(self) -> OutputItem:
        """An independent copy: the stream goes on while an accumulated response may not."""
        item: OutputItem = object.__new__(OutputItem)
        for name in OutputItem.__slots__:
            setattr(item, name, getattr(self, name))
        item.parts = list(self.parts)
        item.logprobs = list(self.logprobs)
        return item

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def close(self, *, incomplete: bool) -> None:
        """Set the last status. Tool search arguments that are no JSON object are incomplete."""
        bad = self.kind is ItemKind.TOOL_SEARCH_CALL and _object_json(self.text) is None
        self.status = "incomplete" if incomplete or bad else "completed"

    def part_json(self) -> str:
        """The content part of reasoning or of a message."""
        if self.kind is ItemKind.REASONING:
            return f'{{"type":"reasoning_text","text":{quote(self.text)}}}'
        return (
            f'{{"type":"output_text","annotations":[],"logprobs":[{",".join(self.logprobs)}],'
            f'"text":{quote(self.text)}}}'
        )

    def to_json(self) -> str:
        """The item as compact JSON."""
        kind = self.kind
        head = f'{{"type":"{kind.type_name}","id":{quote(self.id)},"status":"{self.status}",'
        if kind is ItemKind.REASONING:
            return (
                f'{head}"content":[{self.part_json() if self.has_part else ""}],"summary":[],'
                f'"encrypted_content":{quote(self.placeholder)}}}'
            )
        if kind is ItemKind.MESSAGE:
            return (
                f'{head}"role":"assistant","phase":"{self.phase}",'
                f'"content":[{self.part_json() if self.has_part else ""}]}}'
            )
        head += f'"call_id":{quote(self.call_id)},'
        if kind is ItemKind.TOOL_SEARCH_CALL:
            completed = self.status == "completed"
            arguments = (_object_json(self.text) if completed else None) or "{}"
            return f'{head}"execution":"client","arguments":{arguments}}}'
        head += f'"name":{quote(self.name)},'
        if kind is ItemKind.CUSTOM_TOOL_CALL:
            return f'{head}"input":{quote(self.text)}}}'
        if self.namespace is not None:
            head += f'"namespace":{quote(self.namespace)},'
        return f'{head}"arguments":{quote(self.text)}}}'


def _object_json(text: str) -> str | None:
    """The compact JSON of a text that is a JSON object, else `None`."""
    try:
        value = read_json(text)
    except JsonSyntaxError:
        return None
    return write_compact(value) if isinstance(value, dict) else None
