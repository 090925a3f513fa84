"""The token ids that a model would generate for a given answer.

The answer is rendered as the next message of the conversation; what follows the prompt is what the
model would have written. So the markup is the protocol layer's own.
"""

from __future__ import annotations

import json

from dsinfer_jax.recipe import (
    AssistantMessage,
    Conversation,
    Message,
    RenderedPrompt,
    Tokenizer,
    ToolCall,
    ToolDefinition,
    UserMessage,
)
from dsinfer_jax.recipe.conversation import ToolChoice
from dsinfer_jax.recipe.encoding import encode_prompt
from dsinfer_jax.recipe.rendered_prompt import new_rendered_prompt
from dsinfer_jax.server.mock.samples import sample
from dsinfer_jax.server.prepare import ENCODINGS
from dsinfer_jax.server.source import InferenceJob

REASONING = "The answer follows from the question; 想一想."


def chosen_answer(conversation: Conversation, fixed: str | None) -> AssistantMessage:
    """What the mock says.

    Tools whose names the last user message holds are called (the first tool if a call is required)
    until their results are there; a JSON format gets a fitting value; otherwise the answer is
    `fixed`, or the last message itself.
    """
    reasoning = REASONING if conversation.thinking_mode else None
    called = _called_tools(conversation)
    if called:
        calls = [
            ToolCall(f"call_{number}", tool.name, json.dumps(sample(tool.parameters or {})))
            for number, tool in enumerate(called)
        ]
        return AssistantMessage("", reasoning, calls, prefix=True)
    if conversation.response_schema is not None:
        text = json.dumps(sample(conversation.response_schema), ensure_ascii=False)
    elif conversation.response_format == "json_object":
        text = json.dumps({"echo": _last_text(conversation)}, ensure_ascii=False)
    else:
        text = _last_text(conversation) if fixed is None else fixed
    return AssistantMessage(text, reasoning, prefix=True)


def output_ids(job: InferenceJob, answer: AssistantMessage, tokenizer: Tokenizer) -> list[int]:
    """The ids of the answer after the prompt of the job.

    They do not depend on what was said before, so a short conversation of the same kind stands for
    that of the job.
    """
    conversation = job.request.conversation
    encoding = ENCODINGS[job.request.model_version]
    before: list[Message] = [UserMessage("")]
    begun = conversation.messages[-1:]
    if begun and begun[0].prefix:
        answer = _continued(begun[0], answer)
        asked = _like(conversation, [*before, begun[0]], conversation.tool_choice)
    else:
        asked = _like(conversation, before, conversation.tool_choice)
    choice: ToolChoice = "none" if conversation.tool_choice == "none" else "auto"
    whole = encoding.render_conversation(_like(conversation, [*before, answer], choice))
    start = encoding.render_conversation(asked).prompt
    assert whole.prompt.startswith(start)
    return encode_prompt(_rest(whole, len(start)), tokenizer)


def _like(conversation: Conversation, messages: list[Message], choice: ToolChoice) -> Conversation:
    """A conversation with other messages. `choice` "required" writes the beginning of a call."""
    asks_json = conversation.response_format == "json_object"
    return Conversation(
        messages,
        thinking_mode=conversation.thinking_mode,
        tools=conversation.tools,
        tool_choice=choice,
        reasoning_effort=conversation.reasoning_effort,
        response_format="json_object" if asks_json else "text",
        response_schema=conversation.response_schema,
        response_regex=conversation.response_regex,
    )


def _continued(begun: Message, answer: AssistantMessage) -> AssistantMessage:
    reasoning = answer.reasoning_content
    if begun.reasoning_content is not None:
        reasoning = begun.reasoning_content + ("" if begun.content else reasoning or "")
    return AssistantMessage(begun.content + answer.content, reasoning, prefix=True)


def _rest(prompt: RenderedPrompt, start: int) -> RenderedPrompt:
    """The part of a prompt from character `start` on, control tokens marked as before."""
    text = prompt.prompt
    parts = []
    for begin, end in prompt.special_ranges:
        if begin >= start:
            parts += [text[start:begin], text[begin:end]]
            start = end
    return new_rendered_prompt([*parts, text[start:]], [])


def _called_tools(conversation: Conversation) -> list[ToolDefinition]:
    messages = conversation.messages
    if not conversation.tools or conversation.tool_choice == "none":
        return []
    if messages and messages[-1].role == "tool":
        return []
    text = _last_text(conversation)
    named = [tool for tool in conversation.tools if tool.name in text]
    return named or (conversation.tools[:1] if conversation.tool_choice == "required" else [])


def _last_text(conversation: Conversation) -> str:
    """The last message with text that is not the assistant's."""
    for message in reversed(conversation.messages):
        if message.role != "assistant" and message.content:
            return message.content
    return "…"
