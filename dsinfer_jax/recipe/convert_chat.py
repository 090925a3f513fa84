"""Chat Completions to a conversation (recipe.md 2.11)."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.content_parts import Content, Part, join_parts
from dsinfer_jax.recipe.conversation import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolDefinition,
    new_assistant_message,
    new_latest_reminder_message,
    new_system_message,
    new_tool,
    new_tool_call,
    new_tool_message,
    new_user_message,
)
from dsinfer_jax.recipe.conversation_request import (
    ConversationRequest,
    InferenceOptions,
    new_constraint,
    new_conversation_request,
    new_inference_options,
)
from dsinfer_jax.recipe.conversion_options import ConversionOptions, ModelVersion
from dsinfer_jax.recipe.image_references import UNSUPPORTED_IMAGE, file_url, image_at
from dsinfer_jax.recipe.inference import ThinkingInitialStage
from dsinfer_jax.recipe.message_checks import mentions_json, settle_reasoning
from dsinfer_jax.recipe.settings import (
    check_max_tokens,
    check_penalty,
    check_top_logprobs,
    max_tokens_bound,
    model_version,
    reasoning_effort,
    stop_sequences,
    temperature,
    thinking_mode,
    top_p,
)
from dsinfer_jax.recipe.tool_declarations import (
    JSON_OBJECT_FORMAT,
    TEXT_FORMAT,
    AnswerFormat,
    ChosenTools,
    check_name,
    check_strict_mix,
    choose_tools,
    conversation_with,
    output_constraint,
    schema_format,
)
from dsinfer_jax.recipe.values import conversion_error

Body = dict[str, Any]


def convert_chat(body: Body, options: ConversionOptions) -> ConversationRequest:
    """The converted request; ``ConversionError`` for the first rule that the body breaks."""
    version = model_version(body["model"], options)
    thinking = thinking_mode(body.get("thinking"), body.get("reasoning_effort"), options)
    declared = _declared_tools(body)
    messages = _MessageReader(version, thinking, options).read(body["messages"])
    if thinking:
        settle_reasoning(messages, options, bool(declared), "The `reasoning_content`")
    _check_prefix_position(messages)
    if not body["messages"]:
        raise conversion_error("Empty input messages")
    answer = body.get("response_format")
    wants_json = answer is not None and answer["type"] == "json_object"
    if wants_json and not mentions_json(messages):
        raise conversion_error(
            "Prompt must contain the word 'json' in some form to use 'response_format' "
            "of type 'json_object'."
        )
    chosen = choose_tools(declared, _choice(body.get("tool_choice")), thinking)
    _check_prefix(messages, bool(declared), wants_json)
    stops = stop_sequences(body.get("stop"))
    if body.get("stream_options") is not None and not body.get("stream"):
        raise conversion_error("stream_options should be set along with stream = true")
    answer_format = _answer_format(answer)
    check_strict_mix(chosen.tools, answer is not None)
    inference = _inference_options(body, options, version, thinking, chosen, answer_format)
    effort = reasoning_effort(body.get("reasoning_effort"), thinking)
    return new_conversation_request(
        conversation_with(messages, thinking, chosen, effort, answer_format),
        version,
        inference,
        options,
        _initial_stage(messages) if thinking else None,
        body.get("stream"),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        choices=body.get("n") or 1,
        stop_sequences=stops,
    )


def _declared_tools(body: Body) -> list[ToolDefinition]:
    declared = []
    for index, tool in enumerate(body.get("tools") or ()):
        function = tool["function"]
        get = function.get
        check_name(function["name"], f"tools[{index}].function.name")
        declared.append(
            new_tool(function["name"], get("description"), get("parameters"), get("strict"))
        )
    return declared


def _choice(choice: Any) -> Any:
    return choice["function"] if isinstance(choice, dict) else choice


def _answer_format(answer: Body | None) -> AnswerFormat:
    if answer is None or answer["type"] == "text":
        return TEXT_FORMAT
    if answer["type"] == "json_object":
        return JSON_OBJECT_FORMAT
    if answer["type"] == "regex":
        regex = answer["regex"]
        return AnswerFormat("regex", None, regex, new_constraint("regex", regex))
    described = answer["json_schema"]
    return schema_format(described["schema"], bool(described.get("strict")))


def _inference_options(
    body: Body,
    options: ConversionOptions,
    version: ModelVersion,
    thinking: bool,
    chosen: ChosenTools,
    answer: AnswerFormat,
) -> InferenceOptions:
    """Sampling settings; the order of the checks is the official one."""
    get = body.get
    n = get("n")
    if n is not None and n != 1 and not 1 <= n <= options._maximum_choices:
        raise conversion_error("Invalid n value (currently only n = 1 is supported)")
    check_penalty("presence_penalty", get("presence_penalty"))
    check_penalty("frequency_penalty", get("frequency_penalty"))
    heat = temperature(get("temperature"), thinking)
    nucleus = top_p(get("top_p"), thinking, version, bool(chosen.tools))
    logprobs = bool(get("logprobs"))
    if get("top_logprobs") is not None and not logprobs:
        raise conversion_error(
            "Invalid top_logprobs and logprobs value, logprobs must be set to true "
            "if top_logprobs is used."
        )
    check_top_logprobs(get("top_logprobs"))
    check_max_tokens(get("max_tokens"), max_tokens_bound(thinking, options))
    seed = get("seed")
    if seed is not None and seed >= 1 << 63:
        raise conversion_error("Invalid seed value, the valid range of seed is [0, 2^63)")
    return new_inference_options(
        get("max_tokens"),
        heat,
        nucleus,
        logprobs,
        get("top_logprobs"),
        seed,
        output_constraint(chosen, answer),
    )


def _check_prefix_position(messages: list[Message]) -> None:
    for message in messages[:-1]:
        if message._prefix:
            raise conversion_error(
                "Invalid completion message: prefix set true with message which is not final "
                "message or message role is not assistant"
            )


def _check_prefix(messages: list[Message], tools_are_declared: bool, wants_json: bool) -> None:
    if not (messages and messages[-1]._prefix):
        return
    if wants_json:
        raise conversion_error("response_format json_object should not be used with prefix")
    if tools_are_declared or any(message._tool_calls for message in messages):
        raise conversion_error("Function call should not be used with prefix")


def _initial_stage(messages: list[Message]) -> ThinkingInitialStage:
    last = messages[-1] if messages else None
    if last is not None and last._prefix:
        if last._content:
            return ThinkingInitialStage.ContentContinuation
        if last._reasoning_content:
            return ThinkingInitialStage.ReasoningContinuation
    return ThinkingInitialStage.ReasoningStart


class _MessageReader:
    """Converts the messages in order and checks that calls and results pair up."""

    def __init__(self, version: ModelVersion, thinking: bool, options: ConversionOptions) -> None:
        self._with_images = version is ModelVersion.DeepseekV41Flash
        self._thinking = thinking
        self._placeholder = options._special_tokens._image
        self._call_ids: set[str] = set()
        self._results: set[str] = set()

    def read(self, bodies: list[Body]) -> list[Message]:
        messages = [self._message(index, body) for index, body in enumerate(bodies)]
        self._check_results_are_complete()
        return [m for m in messages if m._content or type(m) is not SystemMessage]

    def _check_results_are_complete(self) -> None:
        if len(self._results) < len(self._call_ids):
            raise conversion_error(
                "An assistant message with 'tool_calls' must be followed by tool messages "
                "responding to each 'tool_call_id'. (insufficient tool messages following "
                "tool_calls message)"
            )

    def _message(self, index: int, body: Body) -> Message:
        role = body["role"]
        if role == "tool":
            return self._tool_message(index, body)
        if self._call_ids:
            self._check_results_are_complete()
            self._call_ids = set()
            self._results = set()
        if role == "assistant":
            return self._assistant_message(index, body)
        content = body["content"]
        if role == "latest_reminder":
            return new_latest_reminder_message(content)
        new = new_user_message if role == "user" else new_system_message
        if type(content) is str:
            return new(content)
        return new(*self._content(index, content))

    def _content(self, index: int, content: str | list[Body]) -> Content:
        if isinstance(content, str):
            return content, (), ()
        path = f".messages[{index}]"
        images = [self._image(block, path) for block in content]
        parts: list[Part] = [
            block["text"] if image is None else self._image_part(image, path)
            for block, image in zip(content, images)
        ]
        return join_parts(parts, self._placeholder)

    def _image(self, block: Body, path: str) -> Body | None:
        """The image of a block that is not text; files are looked at before any URL."""
        if block["type"] == "text":
            return None
        if block["type"] == "file" and self._with_images:
            return {"url": file_url(block, path)}
        return block.get("image_url") or block

    def _image_part(self, image: Body, path: str) -> Part:
        if not self._with_images:
            return UNSUPPORTED_IMAGE
        return image_at(image["url"], image.get("detail") or "high", path)

    def _assistant_text(self, index: int, content: str | list[Body]) -> str:
        if isinstance(content, str):
            return content
        images = [self._image(block, f".messages[{index}]") for block in content]
        if self._with_images and any(images):
            raise conversion_error("Image in assistant message is not supported")
        return "\n\n".join(block.get("text", UNSUPPORTED_IMAGE) for block in content)

    def _tool_message(self, index: int, body: Body) -> Message:
        call_id = body["tool_call_id"]
        if len(self._results) == len(self._call_ids):
            raise conversion_error(
                "Messages with role 'tool' must be a response to a preceding message with "
                "'tool_calls'"
            )
        if call_id not in self._call_ids:
            raise conversion_error(
                "An assistant message with 'tool_calls' must be followed by tool messages "
                "responding to each 'tool_call_id', The following tool_call_ids did not have "
                f"response messages: {call_id}"
            )
        if call_id in self._results:
            raise _duplicate_id(call_id, index)
        self._results.add(call_id)
        content, images, spans = self._content(index, body["content"])
        return new_tool_message(content, call_id, images, spans)

    def _assistant_message(self, index: int, body: Body) -> AssistantMessage:
        given = body.get("tool_calls")
        content = body.get("content")
        if given is not None and not given:
            raise conversion_error(
                f"Invalid 'messages[{index}].tool_calls': empty array. Expected an array with "
                "minimum length 1, but got an empty array instead."
            )
        if given is None and content is None:
            raise conversion_error("Invalid assistant message: content or tool_calls must be set")
        calls = None
        if given is not None:
            calls = []
            for call in given:
                call_id, function = call["id"], call["function"]
                if call_id in self._call_ids:
                    raise _duplicate_id(call_id, index)
                self._call_ids.add(call_id)
                calls.append(new_tool_call(call_id, function["name"], function["arguments"]))
        text = self._assistant_text(index, content or "")
        reasoning = body.get("reasoning_content") if self._thinking else None
        return new_assistant_message(text, reasoning, calls, bool(body.get("prefix")))


def _duplicate_id(call_id: str, index: int) -> Exception:
    return conversion_error(f"Duplicate value for 'tool_call_id' of {call_id} in message[{index}]")
