"""Items as the recipe sees them: requests, conversations, token ids.

All markup is the recipe's: an answer is rendered as an assistant message that is to be continued,
and the end token is added.
"""

from dataclasses import dataclass

import numpy as np

from demo_training.tasks.task import Item, arguments_text, call_id
from dsinfer_jax.recipe import (
    AssistantMessage,
    ChatCompletionRequest,
    Conversation,
    ConversationRequest,
    ConversionOptions,
    DeepseekV41Encoding,
    ModelVersion,
    SpecialToken,
    Tokenizer,
    ToolCall,
)

OPTIONS = ConversionOptions().with_model_alias("demo", ModelVersion.DeepseekV41Flash)


@dataclass(frozen=True)
class Rendered:
    """A conversation with its answer.

    Attributes:
        token_ids: [tokens] int32, BOS to the end token of the answer.
        answered: [tokens] bool: what assistants said, in the history too: thinking, content, calls
            and end tokens, without the opening that the template gives; not the turns of a history
            whose thinking is left out.
    """

    token_ids: np.ndarray
    answered: np.ndarray


def converted(item: Item) -> ConversationRequest:
    """The request of an item, as a server reads it."""
    return ChatCompletionRequest(item.body).convert(OPTIONS)


def conversation_with_answer(item: Item) -> Conversation:
    """The conversation, and at its end the answer without an end token."""
    conversation = converted(item).conversation
    answer = item.answer
    calls = [
        ToolCall(call_id(number), call.name, arguments_text(call.arguments))
        for number, call in enumerate(answer.calls)
    ]
    said = AssistantMessage(answer.content, answer.thinking, calls, prefix=True)
    return Conversation(
        [*conversation.messages, said],
        thinking_mode=conversation.thinking_mode,
        tools=conversation.tools,
        reasoning_effort=conversation.reasoning_effort,
        response_schema=conversation.response_schema,
    )


class Renderer:
    """Items to token ids, with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._encoding = DeepseekV41Encoding().with_tokenizer(tokenizer)
        self.end = control_id(SpecialToken.Eos, tokenizer)
        self._assistant = control_id(SpecialToken.Assistant, tokenizer)

    def prompt(self, item: Item) -> list[int]:
        """What the model is given: up to where the answer begins."""
        return self._encoding.encode(converted(item).conversation)

    def render(self, item: Item) -> Rendered:
        """The prompt and the answer."""
        ids = self._encoding.encode(conversation_with_answer(item))
        token_ids = np.array([*ids, self.end], np.int32)
        return Rendered(token_ids, self._answered(token_ids))

    def answer(self, item: Item) -> list[int]:
        """The answer alone, with its end token."""
        return self.render(item).token_ids[len(self.prompt(item)) :].tolist()

    def _answered(self, token_ids: np.ndarray) -> np.ndarray:
        """From two after an assistant's mark (its think mark is the template's) to the end token.

        The history of a conversation with thinking may show turns without theirs. Nobody would
        say them like that, so they do not count: the think mark differs from the last one.
        No text of a user can become a control id, so the marks are where assistants speak.
        """
        answered = np.zeros(len(token_ids), bool)
        ends = np.flatnonzero(token_ids == self.end)
        marks = np.flatnonzero(token_ids == self._assistant) + 1
        as_said = marks[token_ids[marks] == token_ids[marks[-1]]]
        for start in as_said + 1:
            answered[start : ends[np.searchsorted(ends, start)] + 1] = True
        return answered


def control_id(kind: SpecialToken, tokenizer: Tokenizer) -> int:
    """The id of a control token.

    Raises:
        ValueError: the tokenizer does not have it.
    """
    number = tokenizer.added_token_id(kind.default_str())
    if number is None:
        raise ValueError(f"the tokenizer lacks {kind.default_str()}; take one of V4.1")
    return number
