"""Options of the conversion: copies, the extensions, and limits."""

from __future__ import annotations

from typing import Any

import pytest

from dsinfer_jax.recipe import (
    ChatCompletionRequest,
    ConversationRequest,
    ConversionError,
    ConversionOptions,
    ModelVersion,
    SpecialTokens,
)

BODY = {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "x"}]}


def convert(options: ConversionOptions | None = None, **body: Any) -> ConversationRequest:
    return ChatCompletionRequest({**BODY, **body}).convert(options or ConversionOptions())


def test_with_methods_leave_the_old_options_alone() -> None:
    options = ConversionOptions()
    changed = (
        options.with_default_thinking_mode(False)
        .with_model_alias("mine", ModelVersion.DeepseekV4Pro)
        .with_special_tokens(SpecialTokens(dsml="[D]"))
        .with_thinking_max_tokens_upper_bound(7)
    )
    assert options.default_thinking_mode
    assert "mine" not in options.model_versions_by_name
    assert not changed.default_thinking_mode
    assert changed.model_versions_by_name["mine"] is ModelVersion.DeepseekV4Pro
    assert changed.special_tokens._dsml == "[D]"
    assert changed.thinking_max_tokens_upper_bound == 7
    options.model_versions_by_name.clear()
    assert options.model_versions_by_name


def test_several_answers_are_refused_unless_allowed() -> None:
    assert convert(n=1).choices == 1
    assert convert().choices == 1
    for n in (0, 2):
        with pytest.raises(ConversionError, match="Invalid n value"):
            convert(n=n)
    options = ConversionOptions(maximum_choices=4)
    assert convert(options, n=4).choices == 4
    for n in (0, 5):
        with pytest.raises(ConversionError, match="Invalid n value"):
            convert(options, n=n)


def test_strict_mode_reaches_the_parser() -> None:
    assert not convert().parsing_options.strict
    assert convert(ConversionOptions(strict=True)).parsing_options.strict
    assert convert(ConversionOptions().with_strict(True)).parsing_options.strict


def test_parsing_options_are_a_copy() -> None:
    request = convert(stop=["a"])
    request.parsing_options.stop_sequences = []
    assert request.parsing_options.stop_sequences == ["a"]


@pytest.mark.parametrize(
    ("body", "used", "limit", "expected"),
    [
        ({}, 10, 1 << 20, 65_536),
        ({"reasoning_effort": "max"}, 10, 1 << 20, 131_072),
        ({"thinking": {"type": "disabled"}}, 10, 1 << 20, 8_192),
        ({}, 10, 100, 90),
        ({}, 100, 100, 1),
        ({"max_tokens": 5}, 10, 15, 5),
    ],
)
def test_limits(body: dict[str, Any], used: int, limit: int, expected: int) -> None:
    assert convert(**body).resolve_max_tokens(used, limit) == expected


@pytest.mark.parametrize(
    ("body", "used", "limit"),
    [({}, 101, 100), ({"max_tokens": 5}, 10, 14), ({"max_tokens": 1}, 9, 9)],
)
def test_what_does_not_fit_is_refused(body: dict[str, Any], used: int, limit: int) -> None:
    with pytest.raises(ConversionError, match=f"maximum context length is {limit} tokens"):
        convert(**body).resolve_max_tokens(used, limit)
