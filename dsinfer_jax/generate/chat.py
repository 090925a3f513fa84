"""Chats made ready for one model: prompts as token ids, constraints with the model's own tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dsinfer_jax.engine.structured_output import StructuredOutput
from dsinfer_jax.generate.prompts import ChatConstraint

if TYPE_CHECKING:
    from dsinfer_jax.engine.detokenise import TextCodec
    from dsinfer_jax.recipe.conversation import Conversation

_MARKER, _THINKING_END = "｜DSML｜", "</think>"


def chat_encoder(tokenizer: Path) -> Callable[["Conversation"], list[int]]:
    """Encodes conversations with a model's tokenizer, which is read when the first one comes."""

    def encode(conversation: "Conversation") -> list[int]:
        from dsinfer_jax.recipe.encoding import DeepseekV41Encoding
        from dsinfer_jax.recipe.tokenizer import Tokenizer

        encoding = DeepseekV41Encoding().with_tokenizer(Tokenizer.from_file(str(tokenizer)))
        try:
            return encoding.encode(conversation)
        except RuntimeError as error:  # a control token that this tokenizer does not have
            raise ValueError(f"{tokenizer} cannot encode the chat: {error}") from None

    return encode


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
