"""Prompts from the command line and from files. Imports nothing heavy."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Union

from dsinfer_jax.engine.request import SamplingParams
from dsinfer_jax.generate.chat_request import ChatConstraint, constraint_of, converted, read_body
from dsinfer_jax.generate.prompt_files import PromptError, read_text

if TYPE_CHECKING:
    from dsinfer_jax.recipe.conversation import Conversation

# sampling fields that a chat request may set, and the keys that set them
_CHAT_FIELDS = {
    "max_tokens": ("max_tokens", "max_completion_tokens"),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "seed": ("seed",),
}
_SAMPLING_FIELDS = {field.name for field in fields(SamplingParams)}


@dataclass(frozen=True)
class PromptItem:
    """One prompt: plain text, token ids, or a conversation still to be encoded."""

    content: Union[str, list[int], "Conversation"]
    params: SamplingParams
    constraint: ChatConstraint | None = None


def read_prompts(
    texts: Sequence[str],
    id_lists: Sequence[str],
    lines_file: str | None,
    chat_file: str | None,
    params: SamplingParams,
) -> list[PromptItem]:
    """All prompts in order: texts, id lists, lines of a file, a chat.

    Raises:
        PromptError: a list or a file that cannot be read.
    """
    items = [PromptItem(text, params) for text in texts]
    items += [PromptItem(_ids(text), params) for text in id_lists]
    if lines_file is not None:
        items += _read_lines(Path(lines_file), params)
    if chat_file is not None:
        items.append(_read_chat(Path(chat_file), params))
    return items


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise PromptError(
            f"--prompt-ids is {text!r}; it must be whole numbers with commas between"
        ) from None


def _read_lines(path: Path, params: SamplingParams) -> Iterator[PromptItem]:
    # not splitlines(): a JSON string may hold U+2028 and its like
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield _line_item(line, f"{path}, line {number}", params)


def _line_item(line: str, place: str, params: SamplingParams) -> PromptItem:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{place} is not valid JSON ({error})") from None
    if isinstance(value, str):
        return PromptItem(value, params)
    if not isinstance(value, dict) or ("prompt" in value) == ("prompt_token_ids" in value):
        raise PromptError(
            f"{place} must be a string or an object with either prompt or prompt_token_ids"
        )
    unknown = sorted(value.keys() - _SAMPLING_FIELDS - {"prompt", "prompt_token_ids"})
    if unknown:
        raise PromptError(f"{place} has the unknown field {unknown[0]!r}")
    own = {name: value[name] for name in value.keys() & _SAMPLING_FIELDS}
    try:
        chosen = replace(params, **own)
    except ValueError as error:
        raise PromptError(f"{place}: {error}") from None
    if "prompt" in value:
        if not isinstance(value["prompt"], str):
            raise PromptError(f"{place} has a prompt that is not a string")
        return PromptItem(value["prompt"], chosen)
    ids = value["prompt_token_ids"]
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise PromptError(f"{place} has prompt_token_ids that are not a list of whole numbers")
    return PromptItem(ids, chosen)


def _read_chat(path: Path, params: SamplingParams) -> PromptItem:
    """Convert a Chat Completions body; the encoding waits for the model's tokenizer."""
    body = read_body(path)
    request = converted(body, str(path))
    conversation, wanted = request.conversation, request.inference_options
    if any(message.image_sources for message in conversation.messages):
        raise PromptError(f"{path} has images, which the text model cannot read; remove them")
    own = {
        name: getattr(wanted, name)  # as the protocol reads it
        for name, keys in _CHAT_FIELDS.items()
        if any(body.get(key) is not None for key in keys) and getattr(wanted, name) is not None
    }
    try:
        return PromptItem(conversation, replace(params, **own), constraint_of(request))
    except ValueError as error:
        raise PromptError(f"{path}: {error}") from None
