"""The response object of the Responses dialect and the settings it reports (recipe.md 5.6)."""

from __future__ import annotations

from dataclasses import dataclass

from dsinfer_jax.recipe.event_writer import StreamEnd
from dsinfer_jax.recipe.json_values import quote
from dsinfer_jax.recipe.token_text import single_precision
from dsinfer_jax.recipe.values import Value


class ResponsesEcho(Value):
    """The settings of a request as it gave them, which every response object reports.

    Without a request: no instructions, limit or user, `temperature` and `top_p` 1.0,
    `top_logprobs` 0, and the neutral reasoning, text, tool choice and tools.
    """

    # The last four are compact JSON: they are only ever written.
    __slots__ = (
        "_instructions",
        "_max_output_tokens",
        "_reasoning",
        "_temperature",
        "_text",
        "_tool_choice",
        "_tools",
        "_top_logprobs",
        "_top_p",
        "_user",
    )

    def __init__(self) -> None:
        self._instructions: str | None = None
        self._max_output_tokens: int | None = None
        self._temperature = 1.0
        self._top_p = 1.0
        self._top_logprobs = 0
        self._user: str | None = None
        self._reasoning = '{"effort":null,"summary":null}'
        self._text = '{"format":{"type":"text"},"verbosity":null}'
        self._tool_choice = '"auto"'
        self._tools = "[]"

    @property
    def instructions(self) -> str | None:
        return self._instructions

    @property
    def max_output_tokens(self) -> int | None:
        return self._max_output_tokens

    @property
    def temperature(self) -> float:
        """The requested temperature or 1.0; the sampling temperature may differ."""
        return self._temperature

    @property
    def top_p(self) -> float:
        """The requested `top_p` or 1.0; the sampling value may differ."""
        return self._top_p

    @property
    def top_logprobs(self) -> int:
        return self._top_logprobs

    @property
    def user(self) -> str | None:
        return self._user


@dataclass(frozen=True, slots=True)
class ResponseState:
    """The parts of a response object that change during a stream; texts are JSON."""

    status: str = "in_progress"
    completed_at: str = "null"
    incomplete_details: str = "null"
    usage: str = "null"


class ResponseTemplate:
    """The response object of one stream: its constant parts are written once."""

    __slots__ = ("_before_output", "_before_status", "_between", "_tail", "_usage_to_end")

    def __init__(self, id: str, model: str, created: int, echo: ResponsesEcho) -> None:
        limit = echo._max_output_tokens
        self._before_status = (
            f'{{"id":{quote(id)},"object":"response","created_at":{created},"status":"'
        )
        self._between = (
            '"content_filters":null,"error":null,"frequency_penalty":0.0,"incomplete_details":'
        )
        self._before_output = (
            f',"instructions":{_optional(echo._instructions)},'
            f'"max_output_tokens":{"null" if limit is None else limit},"max_tool_calls":null,'
            f'"model":{quote(model)},"moderation":null,"output":['
        )
        self._tail = (
            '],"parallel_tool_calls":true,"presence_penalty":0.0,"previous_response_id":null,'
            '"prompt_cache_key":null,"prompt_cache_retention":null,'
            f'"reasoning":{echo._reasoning},"safety_identifier":null,"service_tier":"default",'
            f'"store":false,"temperature":{single_precision(echo._temperature)},'
            f'"text":{echo._text},"tool_choice":{echo._tool_choice},"tools":{echo._tools},'
            f'"top_logprobs":{echo._top_logprobs},"top_p":{single_precision(echo._top_p)},'
            '"truncation":"disabled","usage":'
        )
        self._usage_to_end = f',"user":{_optional(echo._user)},"metadata":{{}}}}'

    def write(self, state: ResponseState, output: str) -> str:
        """The object as compact JSON; `output` is the JSON of the items, joined with commas."""
        return (
            f'{self._before_status}{state.status}","background":false,'
            f'"completed_at":{state.completed_at},{self._between}{state.incomplete_details}'
            f"{self._before_output}{output}{self._tail}{state.usage}{self._usage_to_end}"
        )


def usage_json(end: StreamEnd) -> str:
    """The usage object; unknown reasoning tokens are reported as 0."""
    return (
        f'{{"input_tokens":{end.prompt_tokens},'
        f'"input_tokens_details":{{"cached_tokens":{end.cache_hit_tokens}}},'
        f'"output_tokens":{end.completion_tokens},'
        f'"output_tokens_details":{{"reasoning_tokens":{end.reasoning_tokens or 0}}},'
        f'"total_tokens":{end.prompt_tokens + end.completion_tokens}}}'
    )


def _optional(text: str | None) -> str:
    return "null" if text is None else quote(text)
