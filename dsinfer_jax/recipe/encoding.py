"""Conversation to prompt, and prompt to token ids (recipe.md 3, 4)."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from dsinfer_jax.recipe.conversation import Conversation
from dsinfer_jax.recipe.quoting import debug_quote
from dsinfer_jax.recipe.render_v4 import RendererV4
from dsinfer_jax.recipe.render_v41 import RendererV41
from dsinfer_jax.recipe.rendered_prompt import RenderedPrompt
from dsinfer_jax.recipe.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens
from dsinfer_jax.recipe.tokenizer import Tokenizer
from dsinfer_jax.recipe.values import Value, instance


class _Encoding(Value):
    """What the two encodings share: everything but the renderer."""

    __slots__ = ("_renderer", "_tokenizer")
    _default_renderer: ClassVar[RendererV4 | RendererV41]
    _renderer: RendererV4 | RendererV41
    _tokenizer: Tokenizer | None

    def __new__(cls) -> Self:
        return cls._make(cls._default_renderer, None)

    @classmethod
    def _make(cls, renderer: Any, tokenizer: Tokenizer | None) -> Self:
        self = object.__new__(cls)
        self._renderer = renderer
        self._tokenizer = tokenizer
        return self

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """A new encoding that encodes with ``tokenizer``."""
        return self._make(self._renderer, instance("tokenizer", tokenizer, Tokenizer))

    def with_special_tokens(self, special_tokens: SpecialTokens) -> Self:
        """A new encoding that writes control tokens as ``special_tokens`` spells them."""
        tokens = instance("special_tokens", special_tokens, SpecialTokens)
        return self._make(type(self._default_renderer)(tokens), self._tokenizer)

    def render_conversation(self, conversation: Conversation) -> RenderedPrompt:
        """The prompt as text with the places of its control tokens and its images."""
        return self._renderer.render(instance("conversation", conversation, Conversation))

    def encode(self, conversation: Conversation) -> list[int]:
        """The prompt as token ids. No text of the conversation can become a control id.

        Raises ``RuntimeError`` without a tokenizer, and for a control token that the added
        vocabulary of the tokenizer does not have.
        """
        prompt = self.render_conversation(conversation)
        if self._tokenizer is None:
            raise RuntimeError("no tokenizer is attached to the encoding")
        return encode_prompt(prompt, self._tokenizer)


class DeepseekV4Encoding(_Encoding):
    """The prompt format of V4."""

    __slots__ = ()
    _default_renderer = RendererV4(DEFAULT_SPECIAL_TOKENS)


class DeepseekV41Encoding(_Encoding):
    """The prompt format of V4.1."""

    __slots__ = ()
    _default_renderer = RendererV41(DEFAULT_SPECIAL_TOKENS)


def encode_prompt(prompt: RenderedPrompt, tokenizer: Tokenizer) -> list[int]:
    """One id for each control token; the text between them without the added vocabulary."""
    parts = prompt._parts
    controls = [control_id(spelling, tokenizer) for spelling in parts[1::2]]
    stretches = tokenizer.encode_plain(parts[0::2])
    ids = list(stretches[0])
    for control, stretch in zip(controls, stretches[1:]):
        ids.append(control)
        ids += stretch
    return ids


def control_id(spelling: str, tokenizer: Tokenizer) -> int:
    """The id of a control token; ``RuntimeError`` if the added vocabulary does not have it."""
    number = tokenizer.added_token_id(spelling)
    if number is None:
        raise RuntimeError(
            f"failed to encode conversation: special token {debug_quote(spelling)} "
            "is not in the added vocabulary"
        )
    return number
