"""Responses requests (recipe.md 2.3, 2.12)."""

from __future__ import annotations

from time import time
from typing import Any

from dsinfer_jax.recipe.conversation_request import ConversationRequest
from dsinfer_jax.recipe.conversion_options import ConversionOptions, ModelVersion
from dsinfer_jax.recipe.convert_responses import convert_responses
from dsinfer_jax.recipe.json_values import quote, write_compact
from dsinfer_jax.recipe.protocol_request import ProtocolRequest, RequestBody
from dsinfer_jax.recipe.responses_events import ResponsesChunkGenerator, ResponsesSettings
from dsinfer_jax.recipe.responses_object import ResponsesEcho
from dsinfer_jax.recipe.responses_shape import RESPONSES_REQUEST
from dsinfer_jax.recipe.responses_tools import TOOL_SEARCH, DeclaredTools, echoed_tools
from dsinfer_jax.recipe.settings import model_version, single
from dsinfer_jax.recipe.values import instance, string


class ResponsesRequest(ProtocolRequest):
    """A Responses request that was read; ``convert`` uses it up, also when it fails.

    The constructor raises ``ValueError`` for a body of the wrong syntax or types.
    """

    __slots__ = ()
    _shape = RESPONSES_REQUEST

    def __new__(cls, body: RequestBody) -> ResponsesRequest:
        return cls._read(body)

    def convert(self, options: ConversionOptions) -> ConversationRequest:
        """The converted request; ``ConversionError`` for the first rule that it breaks."""
        instance("options", options, ConversionOptions)
        return convert_responses(self._take(), options)

    def namespace_tool_map(self, options: ConversionOptions) -> dict[str, tuple[str, str]]:
        """(namespace, local name) of every declared namespace function, by its full name.

        Read it before ``convert``. ``ConversionError`` for bad declarations.
        """
        body = self._peek()
        instance("options", options, ConversionOptions)
        is_v41 = model_version(body["model"], options) is ModelVersion.DeepseekV41Flash
        return DeclaredTools(False, is_v41).read_names(body.get("tools") or ())

    def echo(self) -> ResponsesEcho:
        """The settings that responses report; read them before ``convert``."""
        return _echo(self._peek())

    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> ResponsesChunkGenerator:
        """A generator of the events of one response named ``id``."""
        body = instance("request", request, ConversationRequest)._responses_body
        tools = (body or {}).get("tools") or ()
        return ResponsesChunkGenerator._of(
            ResponsesSettings(
                id=string("id", id),
                model=string("model", model),
                thinking=request._conversation._thinking_mode,
                created=int(time()),
                echo=ResponsesEcho() if body is None else _echo(body),
                custom_tools=frozenset(t["name"] for t in tools if t["type"] == "custom"),
                client_tool_search=any(
                    t["type"] == TOOL_SEARCH and t.get("execution") == "client" for t in tools
                ),
                namespaces=request._namespaces,
            )
        )


def _echo(body: dict[str, Any]) -> ResponsesEcho:
    get = body.get
    echo = ResponsesEcho()
    echo._instructions = get("instructions")
    echo._max_output_tokens = get("max_output_tokens")
    echo._user = get("user")
    echo._top_logprobs = get("top_logprobs") or 0
    if get("temperature") is not None:
        echo._temperature = single(body["temperature"])
    if get("top_p") is not None:
        echo._top_p = single(body["top_p"])
    reasoning = get("reasoning") or {}
    echo._reasoning = _choices(reasoning, "effort", "summary")
    echo._text = _text(get("text") or {})
    choice = get("tool_choice")
    if isinstance(choice, dict):
        echo._tool_choice = _choices(choice, "type", *(["name"] if "name" in choice else []))
    elif choice is not None:
        echo._tool_choice = quote(choice)
    echo._tools = echoed_tools(get("tools") or ())
    return echo


def _choices(settings: dict[str, Any], *names: str) -> str:
    return write_compact({name: settings.get(name) for name in names})


def _text(text: dict[str, Any]) -> str:
    answer = text.get("format") or {"type": "text"}
    shown = {"type": answer["type"]}
    if answer["type"] == "json_schema":
        names = ("name", "schema", "description", "strict")
        shown.update((name, answer.get(name)) for name in names)
    return write_compact({"format": shown, "verbosity": text.get("verbosity")})
