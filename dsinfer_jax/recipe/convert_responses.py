"""Responses to a conversation (recipe.md 2.12)."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.conversation import (
    Message,
    SystemMessage,
    new_system_message,
    new_user_message,
)
from dsinfer_jax.recipe.conversation_request import (
    ConversationRequest,
    InferenceOptions,
    new_conversation_request,
    new_inference_options,
)
from dsinfer_jax.recipe.conversion_options import (
    ConversionOptions,
    ModelVersion,
    WebSearchBehavior,
)
from dsinfer_jax.recipe.inference import ThinkingInitialStage
from dsinfer_jax.recipe.message_checks import (
    mentions_json,
    settle_reasoning,
    without_added_tools,
)
from dsinfer_jax.recipe.responses_input import InputReader
from dsinfer_jax.recipe.responses_tools import WEB_SEARCHES, DeclaredTools
from dsinfer_jax.recipe.settings import (
    check_max_tokens,
    check_top_logprobs,
    max_tokens_bound,
    model_version,
    reasoning_effort,
    temperature,
    thinking_mode,
    top_p,
)
from dsinfer_jax.recipe.tool_declarations import (
    JSON_OBJECT_FORMAT,
    TEXT_FORMAT,
    AnswerFormat,
    ChosenTools,
    check_strict_mix,
    choose_tools,
    conversation_with,
    output_constraint,
    schema_format,
    with_parameters,
)
from dsinfer_jax.recipe.values import conversion_error

Body = dict[str, Any]


def convert_responses(body: Body, options: ConversionOptions) -> ConversationRequest:
    """The converted request; ``ConversionError`` for the first rule that the body breaks."""
    version = model_version(body["model"], options)
    effort = (body.get("reasoning") or {}).get("effort")
    thinking = thinking_mode(None, effort, options)
    rejects_search = options._responses_web_search is WebSearchBehavior.Reject
    tools = DeclaredTools(rejects_search, version is ModelVersion.DeepseekV41Flash)
    tools.read(body.get("tools") or ())
    messages, loaded = _read_input(body, options, version, thinking, tools)
    declared = [*tools.tools, *loaded]
    if thinking:
        settle_reasoning(messages, options, bool(declared), "The `reasoning_text`")
    choice = _choice(body.get("tool_choice"), rejects_search)
    chosen = choose_tools(declared, choice, thinking)
    answer = (body.get("text") or {}).get("format")
    answer_format = _answer_format(answer)
    wants_json = answer_format is JSON_OBJECT_FORMAT
    if wants_json and not mentions_json(messages):
        raise conversion_error(
            "Response input messages must contain the word 'json' in some form to use "
            "'text.format' of type 'json_object'."
        )
    check_strict_mix(chosen.tools, answer_format is not TEXT_FORMAT)
    messages = _with_normalised_tools(messages, chosen)
    inference = _inference_options(body, options, version, thinking, chosen, answer_format)
    effort = reasoning_effort(effort, thinking)
    return new_conversation_request(
        conversation_with(messages, thinking, chosen, effort, answer_format),
        version,
        inference,
        options,
        ThinkingInitialStage.ReasoningStart if thinking else None,
        body.get("stream"),
        responses_body=body,
        namespaces=tools.names,
    )


def _read_input(
    body: Body,
    options: ConversionOptions,
    version: ModelVersion,
    thinking: bool,
    tools: DeclaredTools,
) -> tuple[list[Message], list[Any]]:
    """The messages, and the tools that the history found."""
    messages: list[Message] = []
    instructions = body.get("instructions")
    given = body.get("input")
    if given is None and not instructions:
        raise conversion_error("Either input or instructions must be provided")
    if isinstance(given, list) and not given:
        raise conversion_error("Input items array must not be empty")
    if instructions:
        messages.append(new_system_message(instructions))
    if isinstance(given, str):
        messages.append(new_user_message(given))
        return messages, []
    reader = InputReader(version, thinking, options, tools)
    messages += reader.read(given or ())
    if body.get("tool_choice") == "none":
        messages = without_added_tools(messages)
    return messages, reader.loaded


def _with_normalised_tools(messages: list[Message], chosen: ChosenTools) -> list[Message]:
    """The messages with the tools that searches found as the conversation has them."""
    final = {tool._name: tool for tool in chosen.tools}
    for position, message in enumerate(messages):
        if isinstance(message, SystemMessage) and message._tools:
            tools = [
                final.get(tool._name) or with_parameters(tool, tool._parameters or {})
                for tool in message._tools
            ]
            messages[position] = new_system_message(message._content, tools=tools)
    return messages


def _choice(choice: Any, rejects_search: bool) -> Any:
    if not isinstance(choice, dict) or choice["type"] not in WEB_SEARCHES:
        return choice
    if rejects_search:
        raise conversion_error("Server tools are not supported")
    return "auto"


def _answer_format(answer: Body | None) -> AnswerFormat:
    if answer is None or answer["type"] == "text":
        return TEXT_FORMAT
    if answer["type"] == "json_object":
        return JSON_OBJECT_FORMAT
    return schema_format(answer["schema"], bool(answer.get("strict")))


def _inference_options(
    body: Body,
    options: ConversionOptions,
    version: ModelVersion,
    thinking: bool,
    chosen: ChosenTools,
    answer: AnswerFormat,
) -> InferenceOptions:
    heat = temperature(body.get("temperature"), thinking)
    nucleus = top_p(body.get("top_p"), thinking, version, bool(chosen.tools))
    alternatives = body.get("top_logprobs")
    check_top_logprobs(alternatives)
    limit = body.get("max_output_tokens")
    check_max_tokens(limit, max_tokens_bound(thinking, options))
    return new_inference_options(
        limit,
        heat,
        nucleus,
        alternatives is not None,
        alternatives,
        output_constraint=output_constraint(chosen, answer),
    )
