"""Messages to a conversation (recipe.md 2.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinfer_jax.recipe.conversation import (
    Message,
    ToolDefinition,
    new_system_message,
    new_tool,
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
from dsinfer_jax.recipe.message_checks import settle_reasoning, without_added_tools
from dsinfer_jax.recipe.messages_blocks import MessagesReader
from dsinfer_jax.recipe.settings import (
    check_max_tokens,
    max_tokens_bound,
    model_version,
    reasoning_effort,
    stop_sequences,
    temperature,
    thinking_mode,
    top_p,
)
from dsinfer_jax.recipe.tool_declarations import (
    TEXT_FORMAT,
    ChosenTools,
    check_name,
    choose_tools,
    conversation_with,
    output_constraint,
    unknown_tool,
)
from dsinfer_jax.recipe.values import conversion_error

Body = dict[str, Any]

# A client puts a line that changes with every call first; it would spoil every cached prefix.
BILLING_LINE = "x-anthropic-billing-header:"


def convert_messages(body: Body, options: ConversionOptions) -> ConversationRequest:
    """The converted request; ``ConversionError`` for the first rule that the body breaks."""
    version = model_version(body["model"], options)
    effort = (body.get("output_config") or {}).get("effort")
    thinking = thinking_mode(body.get("thinking"), effort, options)
    declared = _declared_tools(body, options, version)
    messages: list[Message] = []
    system = body.get("system")
    if system is not None:
        messages.append(new_system_message(_system_text(system)))
    reader = MessagesReader(version, thinking, options, declared)
    messages += reader.read(body["messages"])
    choice = _choice(body.get("tool_choice"))
    if choice == "none":
        messages = without_added_tools(messages)
    if thinking:
        settle_reasoning(messages, options, bool(declared), "The `content[].thinking`")
    if not body["messages"]:
        raise conversion_error("messages: at least one message is required")
    if isinstance(choice, dict) and body.get("tools") and not declared:
        raise unknown_tool(choice["name"])
    chosen = choose_tools(declared, choice, thinking, null_is_empty=False)
    stops = stop_sequences(body.get("stop_sequences"))
    inference = _inference_options(body, options, version, thinking, chosen)
    effort = reasoning_effort(effort, thinking)
    return new_conversation_request(
        conversation_with(messages, thinking, chosen, effort, TEXT_FORMAT),
        version,
        inference,
        options,
        ThinkingInitialStage.ReasoningStart if thinking else None,
        body.get("stream"),
        stop_sequences=stops,
    )


def _declared_tools(
    body: Body, options: ConversionOptions, version: ModelVersion
) -> list[ToolDefinition]:
    tools = body.get("tools") or ()
    may_defer = version is ModelVersion.DeepseekV41Flash
    drops_search = options._messages_web_search is WebSearchBehavior.Drop
    declared = []
    for index, tool in enumerate(tools):
        if drops_search and _is_web_search(tool):
            continue
        if "type" in tool:
            raise conversion_error(f"tools[{index}]: server tools are not supported")
        get = tool.get
        check_name(tool["name"], f"tools[{index}].name")
        deferred = may_defer and bool(get("defer_loading"))
        declared.append(
            new_tool(tool["name"], get("description"), get("input_schema"), None, deferred)
        )
    if declared and all(tool._defer_loading for tool in declared):
        raise conversion_error(
            "tools: at least one tool must have defer_loading=false. All tools cannot be deferred."
        )
    return declared


def _is_web_search(tool: Body) -> bool:
    return tool.get("type", "").startswith("web_search")


def _choice(choice: Body | None) -> Any:
    if choice is None or choice["type"] == "any":
        return "auto"
    return choice if choice["type"] == "tool" else choice["type"]


def _system_text(system: str | Sequence[Body]) -> str:
    if isinstance(system, str):
        return system
    texts = [block["text"] for block in system]
    if texts and texts[0].startswith(BILLING_LINE):
        del texts[0]
    return "\n\n".join(texts)


def _inference_options(
    body: Body,
    options: ConversionOptions,
    version: ModelVersion,
    thinking: bool,
    chosen: ChosenTools,
) -> InferenceOptions:
    heat = temperature(body.get("temperature"), thinking)
    nucleus = top_p(body.get("top_p"), thinking, version, bool(chosen.tools))
    bound = max_tokens_bound(thinking, options)
    limit = body.get("max_tokens")
    if limit is not None:
        limit = min(limit, bound)
        check_max_tokens(limit, bound)
    return new_inference_options(
        limit, heat, nucleus, output_constraint=output_constraint(chosen, TEXT_FORMAT)
    )
