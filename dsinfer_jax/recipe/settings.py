"""Thinking, sampling and stop settings, the same in all dialects (recipe.md 2.5 to 2.7)."""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, inf
from struct import pack, unpack
from typing import Any

from dsinfer_jax.recipe.conversation import ReasoningEffort
from dsinfer_jax.recipe.conversion_options import ConversionOptions, ModelVersion
from dsinfer_jax.recipe.values import conversion_error

MAXIMUM_STOP_SEQUENCES = 16
MAXIMUM_TOP_LOGPROBS = 20

_EFFORTS: dict[str | None, ReasoningEffort] = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "none": "high",
    None: "high",
    "xhigh": "xhigh",
    "ultra": "max",
    "max": "max",
}


def single(number: int | float) -> float:
    """The nearest 32-bit float, which may be infinite."""
    try:
        return unpack("f", pack("f", number))[0]
    except OverflowError:
        return copysign(inf, number)


LEAST_THINKING_TOP_P = single(0.95)


def model_version(model: str, options: ConversionOptions) -> ModelVersion:
    """The version that ``model`` stands for."""
    version = options._model_versions_by_name.get(model)
    if version is None:
        # Byte order of UTF-8 is code point order.
        names = ", ".join(sorted(options._model_versions_by_name))
        raise conversion_error(
            f"The supported API model names are {names}, but you passed {model}."
        )
    return version


def thinking_mode(thinking: Any, effort: str | None, options: ConversionOptions) -> bool:
    """Whether to think, by the ``thinking`` setting, else by the effort, else by the options."""
    if thinking is not None:
        return thinking["type"] != "disabled"
    if effort is not None:
        return effort != "none"
    return options._default_thinking_mode


def reasoning_effort(effort: str | None, thinking: bool) -> ReasoningEffort | None:
    """The effort of the conversation; none without thinking."""
    return _EFFORTS[effort] if thinking else None


def temperature(requested: float | None, thinking: bool) -> float:
    """The temperature to sample with; always 1.0 when thinking."""
    value = 1.0 if requested is None else single(requested)
    if not 0 <= value <= 2:
        raise conversion_error(
            "Invalid temperature value, the valid range of temperature is [0, 2]"
        )
    return 1.0 if thinking else value


def top_p(
    requested: float | None, thinking: bool, version: ModelVersion, tools_in_effect: bool
) -> float:
    """The nucleus to sample from, by the rules of the model version."""
    value = 1.0 if requested is None else single(requested)
    if not 0 < value <= 1:
        raise conversion_error("Invalid top_p value, the valid range of top_p is (0, 1.0]")
    if version is ModelVersion.DeepseekV41Flash:
        return max(value, LEAST_THINKING_TOP_P) if thinking else 1.0
    if thinking:
        return LEAST_THINKING_TOP_P if tools_in_effect else 1.0
    return value


def check_penalty(name: str, requested: float | None) -> None:
    """Refuse a penalty outside [-2, 2]; penalties have no other effect."""
    if requested is not None and not -2 <= single(requested) <= 2:
        raise conversion_error(f"Invalid {name} value, the valid range of {name} is [-2, 2]")


def check_top_logprobs(requested: int | None) -> None:
    """Refuse more than 20 alternatives."""
    if requested is not None and requested > MAXIMUM_TOP_LOGPROBS:
        raise conversion_error(
            "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20]."
        )


def max_tokens_bound(thinking: bool, options: ConversionOptions) -> int:
    """The upper bound of the mode."""
    if thinking:
        return options._thinking_max_tokens_upper_bound
    return options._non_thinking_max_tokens_upper_bound


def check_max_tokens(requested: int | None, bound: int) -> None:
    """Refuse a limit outside [1, bound]."""
    if requested is not None and not 1 <= requested <= bound:
        raise conversion_error(
            f"Invalid max_tokens value, the valid range of max_tokens is [1, {bound}]"
        )


def stop_sequences(requested: str | Sequence[str] | None) -> Sequence[str]:
    """The stop sequences as a list."""
    if requested is None:
        return ()
    if isinstance(requested, str):
        requested, place = [requested], "stop"
    else:
        place = "stop[{}]"
        if len(requested) > MAXIMUM_STOP_SEQUENCES:
            raise conversion_error(f"Stop string array too long: {len(requested)}")
    for index, sequence in enumerate(requested):
        if not sequence:
            raise empty_string(place.format(index))
    return requested


def empty_string(place: str) -> Exception:
    """The error of an empty string where one with content is needed."""
    return conversion_error(
        f"Invalid '{place}': empty string. Expected a string with minimum length 1, "
        "but got an empty string instead."
    )
