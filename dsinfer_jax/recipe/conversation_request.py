"""A converted request: conversation, sampling, parsing, and the limit of output tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dsinfer_jax.recipe.conversation import Conversation, ToolDefinition
from dsinfer_jax.recipe.conversion_options import ConversionOptions, ModelVersion
from dsinfer_jax.recipe.inference import ParsingOptions, ThinkingInitialStage
from dsinfer_jax.recipe.json_values import quote, write_compact
from dsinfer_jax.recipe.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens
from dsinfer_jax.recipe.values import OutputOnly, Value, conversion_error, instance, unsigned

ConstraintKind = Literal["json", "regex", "tool_call", "tool_call_required"]

DEFAULT_MAX_TOKENS = 8_192
DEFAULT_THINKING_MAX_TOKENS = 65_536
DEFAULT_MAX_EFFORT_MAX_TOKENS = 131_072


class OutputConstraint(OutputOnly):
    """What the output must look like, for a backend that can enforce it.

    ``schema`` is a JSON Schema or "" for any JSON value (kind ``json``), a regular expression
    (``regex``), or the list of tools as compact JSON (``tool_call``, ``tool_call_required``).
    """

    __slots__ = ("_kind", "_source")
    _kind: ConstraintKind
    _source: Any

    @property
    def kind(self) -> ConstraintKind:
        return self._kind

    @property
    def schema(self) -> str:
        source = self._source
        if isinstance(source, str):
            return source
        if self._kind == "json":
            return write_compact(source.schema)
        return "[" + ",".join(map(_tool_json, source)) + "]"


class JsonSchema:
    """A schema that is written only when somebody reads the constraint."""

    __slots__ = ("schema",)

    def __init__(self, schema: Any) -> None:
        self.schema = schema


def new_constraint(
    kind: ConstraintKind, source: str | JsonSchema | Sequence[ToolDefinition]
) -> OutputConstraint:
    """A constraint of a text, a schema or tools."""
    constraint = object.__new__(OutputConstraint)
    constraint._kind = kind
    constraint._source = source
    return constraint


def _tool_json(tool: ToolDefinition) -> str:
    description = "null" if tool._description is None else quote(tool._description)
    strict = "null" if tool._strict is None else str(tool._strict).lower()
    return (
        f'{{"type":"function","function":{{"name":{quote(tool._name)},'
        f'"description":{description},"parameters":{write_compact(tool._parameters)},'
        f'"strict":{strict}}}' + (',"defer_loading":true}' if tool._defer_loading else "}")
    )


class InferenceOptions(OutputOnly):
    """Sampling settings by the rules of the model version; ``None`` where nothing is said."""

    __slots__ = (
        "_logprobs",
        "_max_tokens",
        "_output_constraint",
        "_seed",
        "_temperature",
        "_top_logprobs",
        "_top_p",
    )
    _max_tokens: int | None
    _temperature: float | None
    _top_p: float | None
    _logprobs: bool
    _top_logprobs: int | None
    _seed: int | None
    _output_constraint: OutputConstraint | None

    @property
    def max_tokens(self) -> int | None:
        """The requested limit; ``ConversationRequest.resolve_max_tokens`` gives the one to use."""
        return self._max_tokens

    @property
    def temperature(self) -> float | None:
        return self._temperature

    @property
    def top_p(self) -> float | None:
        return self._top_p

    @property
    def logprobs(self) -> bool:
        return self._logprobs

    @property
    def top_logprobs(self) -> int | None:
        return self._top_logprobs

    @property
    def seed(self) -> int | None:
        return self._seed

    @property
    def output_constraint(self) -> OutputConstraint | None:
        return self._output_constraint


def new_inference_options(
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    logprobs: bool = False,
    top_logprobs: int | None = None,
    seed: int | None = None,
    output_constraint: OutputConstraint | None = None,
) -> InferenceOptions:
    """Options of values that are known to be good."""
    options = object.__new__(InferenceOptions)
    options._max_tokens = max_tokens
    options._temperature = temperature
    options._top_p = top_p
    options._logprobs = logprobs
    options._top_logprobs = top_logprobs
    options._seed = seed
    options._output_constraint = output_constraint
    return options


class ConversationRequest(Value):
    """Everything a server needs to answer a request.

    Built directly it has no sampling settings and default parsing options, whatever the
    conversation says.
    """

    __slots__ = (
        "_choices",
        "_conversation",
        "_include_usage",
        "_inference_options",
        "_initial_stage",
        "_model_version",
        "_namespaces",
        "_parse_json_output",
        "_parse_tool_calls",
        "_responses_body",
        "_special_tokens",
        "_starts_in_tool_calls",
        "_stop_sequences",
        "_stream",
        "_strict",
    )
    _conversation: Conversation
    _model_version: ModelVersion
    _inference_options: InferenceOptions
    _stream: bool
    _include_usage: bool
    _choices: int
    _strict: bool
    _parse_tool_calls: bool
    _starts_in_tool_calls: bool
    _parse_json_output: bool
    _initial_stage: ThinkingInitialStage | None
    _stop_sequences: Sequence[str]
    _special_tokens: SpecialTokens
    _responses_body: dict[str, Any] | None
    _namespaces: dict[str, tuple[str, str]]

    def __new__(
        cls, conversation: Conversation, model_version: ModelVersion
    ) -> ConversationRequest:
        self = object.__new__(cls)
        self._conversation = instance("conversation", conversation, Conversation)
        self._model_version = instance("model_version", model_version, ModelVersion)
        self._inference_options = new_inference_options()
        self._stream = self._include_usage = self._strict = False
        self._choices = 1
        self._parse_tool_calls = True
        self._starts_in_tool_calls = self._parse_json_output = False
        self._initial_stage = None
        self._stop_sequences = ()
        self._special_tokens = DEFAULT_SPECIAL_TOKENS
        self._responses_body = None
        self._namespaces = {}
        return self

    @property
    def conversation(self) -> Conversation:
        return self._conversation

    @property
    def inference_options(self) -> InferenceOptions:
        return self._inference_options

    @property
    def parsing_options(self) -> ParsingOptions:
        """How to read the output; a new object each time, which may be changed."""
        return ParsingOptions(
            parse_tool_calls=self._parse_tool_calls,
            starts_in_tool_calls=self._starts_in_tool_calls,
            parse_json_output=self._parse_json_output,
            thinking_initial_stage=self._initial_stage,
            stop_sequences=self._stop_sequences,
            special_tokens=self._special_tokens,
            strict=self._strict,
        )

    @property
    def model_version(self) -> ModelVersion:
        return self._model_version

    @property
    def stream(self) -> bool:
        """Whether the client wants events."""
        return self._stream

    @property
    def choices(self) -> int:
        """How many answers the client wants: ``n`` (extension; 1 unless the options allow more)."""
        return self._choices

    def resolve_max_tokens(self, prompt_tokens: int, context_limit: int) -> int:
        """The limit of output tokens to give to the backend, at least 1.

        ``prompt_tokens`` counts an image with all of its tokens, ``context_limit`` is the length
        of the model's context. Raises ``ConversionError`` when the prompt and the requested limit
        together do not fit (recipe.md 2.7).
        """
        used = unsigned("prompt_tokens", prompt_tokens, 32)
        limit = unsigned("context_limit", context_limit, 32)
        requested = self._inference_options._max_tokens
        wanted = requested or 0
        total = min(used + wanted, (1 << 32) - 1)
        if total > limit:
            raise conversion_error(
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{total} tokens ({used} in the messages, {wanted} in the completion). "
                "Please reduce the length of the messages or completion."
            )
        if requested is None:
            requested = self._default_max_tokens()
        return max(1, min(requested, limit - used))

    def _default_max_tokens(self) -> int:
        conversation = self._conversation
        if not conversation._thinking_mode:
            return DEFAULT_MAX_TOKENS
        if conversation._reasoning_effort == "max":
            return DEFAULT_MAX_EFFORT_MAX_TOKENS
        return DEFAULT_THINKING_MAX_TOKENS


def new_conversation_request(
    conversation: Conversation,
    model_version: ModelVersion,
    inference_options: InferenceOptions,
    options: ConversionOptions,
    initial_stage: ThinkingInitialStage | None,
    stream: bool | None,
    *,
    include_usage: bool = False,
    choices: int = 1,
    stop_sequences: Sequence[str] = (),
    responses_body: dict[str, Any] | None = None,
    namespaces: dict[str, tuple[str, str]] | None = None,
) -> ConversationRequest:
    """A request of values that are known to be good.

    ``responses_body`` is the body of a Responses request, for what responses report of it.
    """
    request = object.__new__(ConversationRequest)
    request._conversation = conversation
    request._model_version = model_version
    request._inference_options = inference_options
    request._stream = bool(stream)
    request._include_usage = include_usage
    request._choices = choices
    request._strict = options._strict
    request._parse_tool_calls = bool(conversation._tools)
    request._starts_in_tool_calls = conversation._tool_choice == "required"
    request._parse_json_output = conversation._response_format == "json_object"
    request._initial_stage = initial_stage
    request._stop_sequences = stop_sequences
    request._special_tokens = options._special_tokens
    request._responses_body = responses_body
    request._namespaces = namespaces or {}
    return request
