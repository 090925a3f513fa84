"""A conversation: messages, tools and how the answer shall look (recipe.md 1.2).

These are plain values. They know nothing about requests, prompts or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

from dsinfer_jax.recipe.image_sources import ImageSource
from dsinfer_jax.recipe.json_values import json_value
from dsinfer_jax.recipe.quoting import debug_option, debug_quote
from dsinfer_jax.recipe.special_tokens import DEFAULT_SPECIAL_TOKENS
from dsinfer_jax.recipe.values import (
    Value,
    boolean,
    instances,
    optional_boolean,
    optional_string,
    string,
)

Role = Literal["system", "user", "assistant", "tool", "latest_reminder"]
ToolChoice = Literal["auto", "none", "required"]
ReasoningEffort = Literal["low", "high", "xhigh", "max"]
ResponseFormat = Literal["text", "json_object", "json_schema", "regex"]
Span = tuple[int, int]


class ToolCall(Value):
    """A call made in an earlier turn. ``arguments`` is JSON text by intent, and is not checked."""

    __slots__ = ("_arguments", "_id", "_name")
    _id: str
    _name: str
    _arguments: str

    def __new__(cls, id: str, name: str, arguments: str) -> ToolCall:
        return new_tool_call(string("id", id), string("name", name), string("arguments", arguments))

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return self._name

    @property
    def arguments(self) -> str:
        return self._arguments

    def __repr__(self) -> str:
        shown = map(debug_quote, (self._id, self._name, self._arguments))
        return "ToolCall(id={}, name={}, arguments={})".format(*shown)


def new_tool_call(id: str, name: str, arguments: str) -> ToolCall:
    """A ``ToolCall`` of strings that are known to be good."""
    call = object.__new__(ToolCall)
    call._id = id
    call._name = name
    call._arguments = arguments
    return call


class ToolDefinition(Value):
    """A function that the model may call; ``parameters`` is its JSON Schema, copied on reading."""

    __slots__ = ("_defer_loading", "_description", "_name", "_parameters", "_strict")
    _name: str
    _description: str | None
    _parameters: Any
    _strict: bool | None
    _defer_loading: bool

    def __new__(
        cls,
        name: str,
        description: str | None = None,
        parameters: Any = None,
        strict: bool | None = None,
        defer_loading: bool = False,
    ) -> ToolDefinition:
        return new_tool(
            string("name", name),
            optional_string("description", description),
            json_value(parameters),
            optional_boolean("strict", strict),
            boolean("defer_loading", defer_loading),
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def description(self) -> str | None:
        return self._description

    @property
    def parameters(self) -> Any:
        return json_value(self._parameters)

    @property
    def strict(self) -> bool | None:
        return self._strict

    @property
    def defer_loading(self) -> bool:
        return self._defer_loading

    def __repr__(self) -> str:
        strict = "None" if self._strict is None else f"Some({str(self._strict).lower()})"
        name, description = debug_quote(self._name), debug_option(self._description)
        return f"ToolDefinition(name={name}, description={description}, strict={strict})"


def new_tool(
    name: str,
    description: str | None,
    parameters: Any,
    strict: bool | None = None,
    defer_loading: bool = False,
) -> ToolDefinition:
    """A ``ToolDefinition`` of values that are known to be good; ``parameters`` is kept as it is."""
    tool = object.__new__(ToolDefinition)
    tool._name = name
    tool._description = description
    tool._parameters = parameters
    tool._strict = strict
    tool._defer_loading = defer_loading
    return tool


class Message(Value):
    """Base of the messages. Properties that a role does not have are ``None``, empty or false.

    ``_placeholders`` are the spans of ``content`` that stand for images, in order.
    """

    __slots__ = ("_content",)
    _role: ClassVar[Role]
    _content: str
    _placeholders: Sequence[Span] = ()
    _image_sources: Sequence[ImageSource] = ()
    _reasoning_content: str | None = None
    _tool_calls: list[ToolCall] | None = None
    _tool_call_id: str | None = None
    _prefix: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"cannot create {cls.__name__!r} instances")

    @property
    def role(self) -> Role:
        return self._role

    @property
    def content(self) -> str:
        return self._content

    @property
    def reasoning_content(self) -> str | None:
        return self._reasoning_content

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        return None if self._tool_calls is None else list(self._tool_calls)

    @property
    def tool_call_id(self) -> str | None:
        return self._tool_call_id

    @property
    def image_sources(self) -> list[ImageSource]:
        return list(self._image_sources)

    @property
    def prefix(self) -> bool:
        return self._prefix

    def _shown_images(self) -> str:
        return f"image_sources={len(self._image_sources)}"


class SystemMessage(Message):
    """Instructions; ``tools`` are tools that become known with this message (V4.1)."""

    __slots__ = ("_image_sources", "_placeholders", "_tools")
    _role = "system"
    _tools: list[ToolDefinition] | None

    def __new__(
        cls,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        tools: Sequence[ToolDefinition] | None = None,
        *,
        image_token: str | None = None,
    ) -> SystemMessage:
        text, images, placeholders = _content_with_images(content, image_sources, image_token)
        declared = None if tools is None else instances("tools", tools, ToolDefinition)
        return new_system_message(text, images, placeholders, declared)

    @property
    def tools(self) -> list[ToolDefinition] | None:
        return None if self._tools is None else list(self._tools)

    def __repr__(self) -> str:
        return f"SystemMessage({debug_quote(self._content)})"


class UserMessage(Message):
    """What the user says.

    The first occurrences of ``image_token`` in ``content``, one for each source, stand for the
    images; with fewer occurrences the sources are kept all the same.
    """

    __slots__ = ("_image_sources", "_placeholders")
    _role = "user"

    def __new__(
        cls,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
    ) -> UserMessage:
        return new_user_message(*_content_with_images(content, image_sources, image_token))

    def __repr__(self) -> str:
        return f"UserMessage({debug_quote(self._content)}, {self._shown_images()})"


class AssistantMessage(Message):
    """An answer of the model; with ``prefix`` it is continued instead of closed."""

    __slots__ = ("_prefix", "_reasoning_content", "_tool_calls")
    _role = "assistant"

    def __new__(
        cls,
        content: str,
        reasoning_content: str | None = None,
        tool_calls: Sequence[ToolCall] | None = None,
        prefix: bool = False,
    ) -> AssistantMessage:
        return new_assistant_message(
            string("content", content),
            optional_string("reasoning_content", reasoning_content),
            None if tool_calls is None else instances("tool_calls", tool_calls, ToolCall),
            boolean("prefix", prefix),
        )

    def __repr__(self) -> str:
        return (
            f"AssistantMessage({debug_quote(self._content)}, "
            f"reasoning_content={self._reasoning_content is not None}, "
            f"tool_calls={len(self._tool_calls or ())}, prefix={self._prefix})"
        )


class ToolMessage(Message):
    """The result of a call; images as in ``UserMessage``."""

    __slots__ = ("_image_sources", "_placeholders", "_tool_call_id")
    _role = "tool"

    def __new__(
        cls,
        content: str,
        tool_call_id: str | None = None,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
    ) -> ToolMessage:
        call_id = optional_string("tool_call_id", tool_call_id)
        text, images, placeholders = _content_with_images(content, image_sources, image_token)
        return new_tool_message(text, call_id, images, placeholders)

    def __repr__(self) -> str:
        return (
            f"ToolMessage({debug_quote(self._content)}, "
            f"tool_call_id={debug_option(self._tool_call_id)}, {self._shown_images()})"
        )


class LatestReminderMessage(Message):
    """Further instructions beside the newest turn."""

    __slots__ = ()
    _role = "latest_reminder"

    def __new__(cls, content: str) -> LatestReminderMessage:
        return new_latest_reminder_message(string("content", content))

    def __repr__(self) -> str:
        return f"LatestReminderMessage({debug_quote(self._content)})"


def new_system_message(
    content: str,
    image_sources: Sequence[ImageSource] = (),
    placeholders: Sequence[Span] = (),
    tools: list[ToolDefinition] | None = None,
) -> SystemMessage:
    """A ``SystemMessage`` of values that are known to be good."""
    message = object.__new__(SystemMessage)
    message._content = content
    message._image_sources = image_sources
    message._placeholders = placeholders
    message._tools = tools
    return message


def new_user_message(
    content: str, image_sources: Sequence[ImageSource] = (), placeholders: Sequence[Span] = ()
) -> UserMessage:
    """A ``UserMessage`` of values that are known to be good."""
    message = object.__new__(UserMessage)
    message._content = content
    message._image_sources = image_sources
    message._placeholders = placeholders
    return message


def new_assistant_message(
    content: str,
    reasoning_content: str | None,
    tool_calls: list[ToolCall] | None,
    prefix: bool = False,
) -> AssistantMessage:
    """An ``AssistantMessage`` of values that are known to be good."""
    message = object.__new__(AssistantMessage)
    message._content = content
    message._reasoning_content = reasoning_content
    message._tool_calls = tool_calls
    message._prefix = prefix
    return message


def new_tool_message(
    content: str,
    tool_call_id: str | None,
    image_sources: Sequence[ImageSource] = (),
    placeholders: Sequence[Span] = (),
) -> ToolMessage:
    """A ``ToolMessage`` of values that are known to be good."""
    message = object.__new__(ToolMessage)
    message._content = content
    message._tool_call_id = tool_call_id
    message._image_sources = image_sources
    message._placeholders = placeholders
    return message


def new_latest_reminder_message(content: str) -> LatestReminderMessage:
    """A ``LatestReminderMessage`` of a string that is known to be good."""
    message = object.__new__(LatestReminderMessage)
    message._content = content
    return message


def _content_with_images(
    content: Any, image_sources: Any, image_token: Any
) -> tuple[str, Sequence[ImageSource], Sequence[Span]]:
    text = string("content", content)
    token = optional_string("image_token", image_token)
    sources = (
        () if image_sources is None else instances("image_sources", image_sources, ImageSource)
    )
    if token is None:
        token = DEFAULT_SPECIAL_TOKENS._image
    elif not token:
        raise ValueError("image_token must not be empty")
    placeholders: list[Span] = []
    end = 0
    for _ in sources:
        start = text.find(token, end)
        if start < 0:
            break
        end = start + len(token)
        placeholders.append((start, end))
    return text, sources, placeholders


class Conversation(Value):
    """Messages and the settings that the prompt shows. ``response_schema=None`` means none."""

    __slots__ = (
        "_messages",
        "_reasoning_effort",
        "_response_format",
        "_response_regex",
        "_response_schema",
        "_thinking_mode",
        "_tool_choice",
        "_tools",
    )
    _messages: Sequence[Message]
    _thinking_mode: bool
    _tools: Sequence[ToolDefinition]
    _tool_choice: ToolChoice
    _reasoning_effort: ReasoningEffort | None
    _response_format: ResponseFormat
    _response_schema: Any
    _response_regex: str | None

    def __new__(
        cls,
        messages: Sequence[Message] | None = None,
        *,
        thinking_mode: bool = True,
        tools: Sequence[ToolDefinition] | None = None,
        tool_choice: ToolChoice = "auto",
        reasoning_effort: ReasoningEffort | None = None,
        response_format: Literal["text", "json_object"] = "text",
        response_schema: Any | None = None,
        response_regex: str | None = None,
    ) -> Conversation:
        checked_messages = [] if messages is None else instances("messages", messages, Message)
        thinking = boolean("thinking_mode", thinking_mode)
        checked_tools = [] if tools is None else instances("tools", tools, ToolDefinition)
        choice = string("tool_choice", tool_choice)
        effort = optional_string("reasoning_effort", reasoning_effort)
        format_name = string("response_format", response_format)
        regex = optional_string("response_regex", response_regex)
        schema = json_value(response_schema)
        if choice not in ("auto", "none", "required"):
            raise ValueError(
                f'invalid tool_choice {debug_quote(choice)}; expected "auto", "none", or "required"'
            )
        if effort not in (None, "low", "high", "xhigh", "max"):
            raise ValueError(
                f"invalid reasoning_effort {debug_quote(str(effort))}; "
                'expected "low", "high", "xhigh", or "max"'
            )
        return new_conversation(
            checked_messages,
            thinking,
            checked_tools,
            cast(ToolChoice, choice),
            cast(ReasoningEffort | None, effort),
            _response_format(format_name, schema, regex),
            schema,
            regex,
        )

    @property
    def messages(self) -> list[Message]:
        return list(self._messages)

    @property
    def thinking_mode(self) -> bool:
        return self._thinking_mode

    @property
    def tools(self) -> list[ToolDefinition]:
        return list(self._tools)

    @property
    def tool_choice(self) -> ToolChoice:
        return self._tool_choice

    @property
    def reasoning_effort(self) -> ReasoningEffort | None:
        return self._reasoning_effort

    @property
    def response_format(self) -> ResponseFormat:
        return self._response_format

    @property
    def response_schema(self) -> Any | None:
        return json_value(self._response_schema)

    @property
    def response_regex(self) -> str | None:
        return self._response_regex

    def __repr__(self) -> str:
        return (
            f"Conversation(messages={len(self._messages)}, thinking_mode={self._thinking_mode}, "
            f'tools={len(self._tools)}, tool_choice="{self._tool_choice}", '
            f"reasoning_effort={debug_option(self._reasoning_effort)}, "
            f'response_format="{self._response_format}")'
        )


def new_conversation(
    messages: Sequence[Message],
    thinking_mode: bool,
    tools: Sequence[ToolDefinition],
    tool_choice: ToolChoice,
    reasoning_effort: ReasoningEffort | None,
    response_format: ResponseFormat,
    response_schema: Any,
    response_regex: str | None,
) -> Conversation:
    """A ``Conversation`` of values that are known to be good."""
    conversation = object.__new__(Conversation)
    conversation._messages = messages
    conversation._thinking_mode = thinking_mode
    conversation._tools = tools
    conversation._tool_choice = tool_choice
    conversation._reasoning_effort = reasoning_effort
    conversation._response_format = response_format
    conversation._response_schema = response_schema
    conversation._response_regex = response_regex
    return conversation


def _response_format(format_name: str, schema: Any, regex: str | None) -> ResponseFormat:
    if format_name not in ("text", "json_object"):
        raise ValueError(
            f'invalid response_format {debug_quote(format_name)}; expected "text" or "json_object"'
        )
    if schema is not None and regex is not None:
        raise ValueError("response_schema and response_regex cannot be combined")
    if schema is None and regex is None:
        return cast(ResponseFormat, format_name)
    if format_name == "json_object":
        raise ValueError(
            'response_format "json_object" cannot be combined with '
            "response_schema or response_regex"
        )
    return "json_schema" if regex is None else "regex"
