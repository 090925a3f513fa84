"""How requests are converted (recipe.md 1.2)."""

from __future__ import annotations

from typing import Any, ClassVar

from dsinfer_jax.recipe.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens
from dsinfer_jax.recipe.values import Enumeration, Value, boolean, instance, string, unsigned

DEFAULT_MAX_TOKENS_UPPER_BOUND = 393_216


class WebSearchBehavior(Enumeration):
    """What to do with web search: leave it out, or refuse the request."""

    __slots__ = ()
    Drop: ClassVar[WebSearchBehavior]
    Reject: ClassVar[WebSearchBehavior]


class ReasoningContentBehavior(Enumeration):
    """What to do in thinking mode with answers whose reasoning did not come back."""

    __slots__ = ()
    FillEmpty: ClassVar[ReasoningContentBehavior]
    Reject: ClassVar[ReasoningContentBehavior]


class ModelVersion(Enumeration):
    """Which prompt format a model name stands for."""

    __slots__ = ()
    DeepseekV4Pro: ClassVar[ModelVersion]
    DeepseekV41Flash: ClassVar[ModelVersion]


class ConversionOptions(Value):
    """Options of the conversion; ``with_`` methods return changed copies.

    ``strict`` and ``maximum_choices`` are extensions: ``strict`` repairs what the official rules
    leave broken in the output, and ``maximum_choices`` is the largest ``n`` that is accepted.
    """

    __slots__ = (
        "_default_thinking_mode",
        "_maximum_choices",
        "_messages_web_search",
        "_model_versions_by_name",
        "_non_thinking_max_tokens_upper_bound",
        "_reasoning_content_behavior",
        "_responses_web_search",
        "_special_tokens",
        "_strict",
        "_thinking_max_tokens_upper_bound",
    )
    _default_thinking_mode: bool
    _reasoning_content_behavior: ReasoningContentBehavior
    _responses_web_search: WebSearchBehavior
    _messages_web_search: WebSearchBehavior
    _thinking_max_tokens_upper_bound: int
    _non_thinking_max_tokens_upper_bound: int
    _strict: bool
    _maximum_choices: int
    _model_versions_by_name: dict[str, ModelVersion]
    _special_tokens: SpecialTokens

    def __new__(
        cls,
        *,
        default_thinking_mode: bool = True,
        reasoning_content_behavior: ReasoningContentBehavior = ReasoningContentBehavior.FillEmpty,
        responses_web_search: WebSearchBehavior = WebSearchBehavior.Drop,
        messages_web_search: WebSearchBehavior = WebSearchBehavior.Reject,
        thinking_max_tokens_upper_bound: int = DEFAULT_MAX_TOKENS_UPPER_BOUND,
        non_thinking_max_tokens_upper_bound: int = DEFAULT_MAX_TOKENS_UPPER_BOUND,
        strict: bool = False,
        maximum_choices: int = 1,
    ) -> ConversionOptions:
        self = object.__new__(cls)
        self._default_thinking_mode = boolean("default_thinking_mode", default_thinking_mode)
        self._reasoning_content_behavior = instance(
            "reasoning_content_behavior", reasoning_content_behavior, ReasoningContentBehavior
        )
        self._responses_web_search = instance(
            "responses_web_search", responses_web_search, WebSearchBehavior
        )
        self._messages_web_search = instance(
            "messages_web_search", messages_web_search, WebSearchBehavior
        )
        self._thinking_max_tokens_upper_bound = unsigned(
            "thinking_max_tokens_upper_bound", thinking_max_tokens_upper_bound, 32
        )
        self._non_thinking_max_tokens_upper_bound = unsigned(
            "non_thinking_max_tokens_upper_bound", non_thinking_max_tokens_upper_bound, 32
        )
        self._strict = boolean("strict", strict)
        self._maximum_choices = unsigned("maximum_choices", maximum_choices, 8)
        self._model_versions_by_name = {
            "DeepSeek-V4-Pro": ModelVersion.DeepseekV4Pro,
            "DeepSeek-V4.1-Flash": ModelVersion.DeepseekV41Flash,
        }
        self._special_tokens = DEFAULT_SPECIAL_TOKENS
        return self

    @property
    def default_thinking_mode(self) -> bool:
        """Whether a request that does not say thinks."""
        return self._default_thinking_mode

    @property
    def reasoning_content_behavior(self) -> ReasoningContentBehavior:
        return self._reasoning_content_behavior

    @property
    def responses_web_search(self) -> WebSearchBehavior:
        return self._responses_web_search

    @property
    def messages_web_search(self) -> WebSearchBehavior:
        return self._messages_web_search

    @property
    def thinking_max_tokens_upper_bound(self) -> int:
        """The largest limit a thinking request may ask for; Messages is cut down to it."""
        return self._thinking_max_tokens_upper_bound

    @property
    def non_thinking_max_tokens_upper_bound(self) -> int:
        """The same for requests that do not think."""
        return self._non_thinking_max_tokens_upper_bound

    @property
    def strict(self) -> bool:
        """Whether broken output is repaired (extension)."""
        return self._strict

    @property
    def maximum_choices(self) -> int:
        """The largest accepted ``n`` (extension)."""
        return self._maximum_choices

    @property
    def model_versions_by_name(self) -> dict[str, ModelVersion]:
        """The accepted model names."""
        return dict(self._model_versions_by_name)

    @property
    def special_tokens(self) -> SpecialTokens:
        return self._special_tokens

    def with_default_thinking_mode(self, default_thinking_mode: bool) -> ConversionOptions:
        return self._with(
            "_default_thinking_mode", boolean("default_thinking_mode", default_thinking_mode)
        )

    def with_reasoning_content_behavior(
        self, reasoning_content_behavior: ReasoningContentBehavior
    ) -> ConversionOptions:
        behavior = instance(
            "reasoning_content_behavior", reasoning_content_behavior, ReasoningContentBehavior
        )
        return self._with("_reasoning_content_behavior", behavior)

    def with_responses_web_search(
        self, responses_web_search: WebSearchBehavior
    ) -> ConversionOptions:
        behavior = instance("responses_web_search", responses_web_search, WebSearchBehavior)
        return self._with("_responses_web_search", behavior)

    def with_messages_web_search(self, messages_web_search: WebSearchBehavior) -> ConversionOptions:
        behavior = instance("messages_web_search", messages_web_search, WebSearchBehavior)
        return self._with("_messages_web_search", behavior)

    def with_thinking_max_tokens_upper_bound(
        self, thinking_max_tokens_upper_bound: int
    ) -> ConversionOptions:
        bound = unsigned("thinking_max_tokens_upper_bound", thinking_max_tokens_upper_bound, 32)
        return self._with("_thinking_max_tokens_upper_bound", bound)

    def with_non_thinking_max_tokens_upper_bound(
        self, non_thinking_max_tokens_upper_bound: int
    ) -> ConversionOptions:
        bound = unsigned(
            "non_thinking_max_tokens_upper_bound", non_thinking_max_tokens_upper_bound, 32
        )
        return self._with("_non_thinking_max_tokens_upper_bound", bound)

    def with_strict(self, strict: bool) -> ConversionOptions:
        """Options that repair broken output or do not (extension)."""
        return self._with("_strict", boolean("strict", strict))

    def with_maximum_choices(self, maximum_choices: int) -> ConversionOptions:
        """Options that accept ``n`` up to this number (extension)."""
        return self._with("_maximum_choices", unsigned("maximum_choices", maximum_choices, 8))

    def with_special_tokens(self, special_tokens: SpecialTokens) -> ConversionOptions:
        tokens = instance("special_tokens", special_tokens, SpecialTokens)
        return self._with("_special_tokens", tokens)

    def with_model_alias(self, model: str, model_version: ModelVersion) -> ConversionOptions:
        """Options that also accept ``model``; an existing name gets the new version."""
        name = string("model", model)
        version = instance("model_version", model_version, ModelVersion)
        table = {**self._model_versions_by_name, name: version}
        return self._with("_model_versions_by_name", table)

    def with_model_versions_by_name(
        self, model_versions_by_name: dict[str, ModelVersion]
    ) -> ConversionOptions:
        """Options that accept these names only."""
        name = "model_versions_by_name"
        table = {
            string(name, model): instance(name, version, ModelVersion)
            for model, version in instance(name, model_versions_by_name, dict).items()
        }
        return self._with("_model_versions_by_name", table)

    def _with(self, slot: str, value: Any) -> ConversionOptions:
        copy = object.__new__(ConversionOptions)
        for name in ConversionOptions.__slots__:
            setattr(copy, name, getattr(self, name))
        setattr(copy, slot, value)
        return copy
