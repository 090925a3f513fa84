"""Model output of one answer: events to show while it comes, and a message in the end."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsinfer_jax.generate.chat_request import MODEL, Message
from dsinfer_jax.recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    InferenceChunk,
    InferenceFinishReason,
    StreamProcessor,
)

if TYPE_CHECKING:
    from dsinfer_jax.recipe import ConversationRequest, Tokenizer

Show = Callable[[Message], None]
"""Called with each `delta` of Chat Completions (recipe.md 5.5)."""

_NAME = "chat"  # of a response; nobody sees it


class AnswerReader:
    """Reads the tokens of one answer.

    Args:
        request: what is answered.
        tokenizer: of the model.
        show: gets what is new.
    """

    def __init__(self, request: "ConversationRequest", tokenizer: "Tokenizer", show: Show) -> None:
        generator = ChatCompletionRequest.chunk_generator(request, _NAME, MODEL)
        self._processor = StreamProcessor(generator, request.parsing_options, tokenizer)
        self._response = ChatCompletionResponse(_NAME, MODEL, 0, 0, 0)
        self._show = show

    def push(self, token_ids: list[int]) -> None:
        """New tokens, without the one that ends the sequence, which is no part of the text."""
        for token in token_ids:  # of a chunk that ends within a character all would be dropped
            self._push(InferenceChunk.tokens([token]))

    def end(self, *, cut: bool) -> Message:
        """The answer as a message of the conversation.

        Args:
            cut: the output ended before the model ended it. Calls that were not whole are left out.
        """
        reason = InferenceFinishReason.Length if cut else InferenceFinishReason.Stop
        self._push(InferenceChunk.finish(reason))
        return _message(json.loads(self._response.to_json())["choices"][0]["message"])

    def _push(self, chunk: InferenceChunk) -> None:
        for event in self._processor.push(chunk):
            self._show(json.loads(event.to_json())["choices"][0]["delta"])
            self._response.accumulate(event)


def _message(given: dict[str, Any]) -> Message:
    """A message of a response as one of a request: without what only a response has."""
    message: Message = {"role": "assistant", "content": given["content"] or ""}
    if given.get("reasoning_content"):
        message["reasoning_content"] = given["reasoning_content"]
    calls = [
        {name: call[name] for name in ("id", "type", "function")}
        for call in given.get("tool_calls", ())
        if _is_json(call["function"]["arguments"])
    ]
    if calls:
        message["tool_calls"] = calls
    return message


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
