"""Chat Completions bodies as the protocol layer converts them. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsinfer_jax.generate.prompt_files import PromptError, read_json

if TYPE_CHECKING:
    from dsinfer_jax.recipe.conversation_request import ConversationRequest

MODEL = "local"  # the name of the loaded model in a body that need not name one

Message = dict[str, Any]


@dataclass(frozen=True)
class ChatConstraint:
    """What a chat demands of the output, as the protocol layer says it.

    Attributes:
        kind, schema: of the recipe's output constraint.
        thinks: whether the output begins with thinking, which is free.
    """

    kind: str
    schema: str
    thinks: bool


def read_body(path: Path) -> dict[str, Any]:
    """A request body; a bare list of messages is one too. Raises PromptError."""
    body = read_json(path)
    if isinstance(body, list):
        body = {"messages": body}
    if not isinstance(body, dict):
        raise PromptError(f"{path} must hold a chat request or a list of messages")
    return {"model": MODEL, **body}


def converted(body: dict[str, Any], place: str) -> "ConversationRequest":
    """A body as a request of V4.1, whatever model it names, whose output is read strictly.

    Args:
        place: where the body is from, for the sentence of an error.

    Raises:
        PromptError: it is not a request.
    """
    from dsinfer_jax.recipe.chat_completions import ChatCompletionRequest
    from dsinfer_jax.recipe.conversion_options import ConversionOptions, ModelVersion
    from dsinfer_jax.recipe.values import ConversionError

    options = ConversionOptions(strict=True)
    if isinstance(body["model"], str):
        options = options.with_model_alias(body["model"], ModelVersion.DeepseekV41Flash)
    try:
        return ChatCompletionRequest(body).convert(options)
    except (ValueError, TypeError, ConversionError) as error:
        raise PromptError(f"{place} is not a chat request: {error}") from None


def constraint_of(request: "ConversationRequest") -> ChatConstraint | None:
    """What a request demands of the output; None: nothing."""
    asked = request.inference_options.output_constraint
    if asked is None:
        return None
    stage = request.parsing_options.thinking_initial_stage
    return ChatConstraint(
        asked.kind, asked.schema, thinks=stage is not None and stage.starts_in_reasoning()
    )
