"""Chats made ready for one model: prompts as token ids, constraints with the model's own tokens."""

from functools import cached_property
from typing import TYPE_CHECKING

from dsinfer_jax.engine.structured_output import StructuredOutput
from dsinfer_jax.generate.chat_request import ChatConstraint

if TYPE_CHECKING:
    from dsinfer_jax.engine.detokenise import TextCodec
    from dsinfer_jax.recipe.conversation import Conversation
    from dsinfer_jax.recipe.encoding import DeepseekV41Encoding
    from dsinfer_jax.recipe.tokenizer import Tokenizer

_MARKER, _THINKING_END = "｜DSML｜", "</think>"


class ChatCodec:
    """Conversations as token ids, with the tokenizer of a model, read when it is first needed.

    Args:
        text: of the model.
    """

    def __init__(self, text: "TextCodec") -> None:
        self.text = text

    def encode(self, conversation: "Conversation") -> list[int]:
        """The prompt of a conversation.

        Raises:
            ValueError: the tokenizer lacks a control token of the prompt.
        """
        try:
            return self._encoding.encode(conversation)
        except RuntimeError as error:
            raise ValueError(f"{self.text.path} cannot encode the chat: {error}") from None

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer as the protocol layer reads it."""
        from dsinfer_jax.recipe.tokenizer import Tokenizer

        return Tokenizer.from_file(str(self.text.path))

    @cached_property
    def _encoding(self) -> "DeepseekV41Encoding":
        """It remembers what it encoded: a later turn encodes what is new."""
        from dsinfer_jax.recipe.encoding import DeepseekV41Encoding

        return DeepseekV41Encoding().with_tokenizer(self.tokenizer)


def structured_output(constraint: ChatConstraint, codec: "TextCodec") -> StructuredOutput:
    """What the engine is to enforce.

    Raises:
        ValueError: the tokenizer lacks a control token that the constraint waits for.
    """
    control = codec.control_tokens
    for name in (_MARKER, _THINKING_END):
        if name not in control:
            raise ValueError(f"{codec.path} cannot constrain the chat: it lacks {name}")
    return StructuredOutput.of_constraint(
        constraint.kind,
        constraint.schema,
        thinking_end=[control[_THINKING_END]] if constraint.thinks else [],
        marker=control[_MARKER],
    )
