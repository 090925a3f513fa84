"""Value objects: read-only, not copyable, the same words as officially."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import dsinfer_jax.recipe as ours

NEVER_LOADED = ("jax", "numpy", "PIL", "tokenizers")


def test_the_import_loads_nothing_heavy() -> None:
    program = (
        "import sys, dsinfer_jax.recipe; "
        f"print([name for name in {NEVER_LOADED!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_official_names_are_all_there() -> None:
    official = pytest.importorskip("deepseek_recipe")
    assert len(ours.__all__) == 57
    assert set(official.__all__) == set(ours.__all__)
    for name in ours.__all__:
        assert hasattr(ours, name)


VALUES = (
    ours.ToolCall("a", "b", "c"),
    ours.ToolDefinition("n", "d", {"type": "object"}, True),
    ours.UserMessage("u"),
    ours.Conversation(),
    ours.UrlImageSource("u"),
    ours.ConversionOptions(),
    ours.SpecialToken.Bos,
    ours.DeepseekV41Encoding(),
    ours.ImageQuota(),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_read_only_and_cannot_be_copied(value: Any) -> None:
    for name in ("content", "id", "something_else"):
        with pytest.raises(AttributeError):
            setattr(value, name, "x")
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot pickle"):
            duplicate(value)
    assert value == value


def test_equality_is_identity() -> None:
    assert ours.ToolCall("a", "b", "c") != ours.ToolCall("a", "b", "c")


def test_lists_are_fresh() -> None:
    conversation = ours.Conversation([ours.UserMessage("x")])
    conversation.messages.clear()
    assert len(conversation.messages) == 1


def test_enumerations() -> None:
    member = ours.SpecialToken.Dsml
    assert (str(member), repr(member), int(member)) == ("SpecialToken.Dsml",) * 2 + (8,)
    assert member != 8
    assert member is ours.SpecialToken.Dsml
    with pytest.raises(TypeError):
        ours.SpecialToken()


CALLS: tuple[Callable[[Any], Any], ...] = (
    lambda m: m.ToolCall(1, "a", "b"),
    lambda m: m.ToolCall("\ud800", "b", "c"),
    lambda m: m.ToolCall("a"),
    lambda m: m.ToolDefinition("a", strict=3),
    lambda m: m.ToolDefinition("a", parameters={1: 2}),
    lambda m: m.ToolDefinition("a", parameters={1}),
    lambda m: m.ToolDefinition("a", parameters=float("nan")),
    lambda m: m.ToolDefinition("a", parameters=2**70),
    lambda m: m.ConversionOptions(thinking_max_tokens_upper_bound=-1),
    lambda m: m.ConversionOptions(thinking_max_tokens_upper_bound=2**32),
    lambda m: m.ConversionOptions(responses_web_search=1),
    lambda m: m.SystemMessage("a", "xx"),
    lambda m: m.SystemMessage("a", [3]),
    lambda m: m.UserMessage("a", image_token=""),
    lambda m: m.AssistantMessage("a", prefix=1),
    lambda m: m.Conversation([m.ToolCall("a", "b", "c")]),
    lambda m: m.Conversation(tool_choice="zz"),
    lambda m: m.Conversation(reasoning_effort="medium"),
    lambda m: m.Conversation(response_format="json_schema"),
    lambda m: m.Conversation(response_schema={}, response_regex="x"),
    lambda m: m.Conversation(response_format="json_object", response_regex="x"),
    lambda m: m.UrlImageSource("u", "zz"),
    lambda m: m.BytesImageSource("u"),
    lambda m: m.DeepseekV41Encoding().encode(m.Conversation()),
    lambda m: m.DeepseekV41Encoding().render_conversation(3),
    lambda m: m.ConversationRequest(m.Conversation(), 3),
    lambda m: m.ConversionOptions().with_model_versions_by_name({"a": 2}),
    lambda m: m.Tokenizer.from_file("/no/such/file"),
    lambda m: m.Tokenizer.from_str(""),
    lambda m: m.ImageInfo(b"", -1, 1),
    lambda m: m.PreprocessOptions("x", 1, 1),
    lambda m: m.ReqwestImageFetcher().with_destination_filter(3),
    lambda m: m.ChatCompletionRequest(b"{").model,
    lambda m: m.ChatCompletionRequest({"model": "x", "messages": [1.5]}).model,
    lambda m: m.ChatCompletionRequest(bytearray(b"{}")).model,
)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_errors_are_worded_officially(number: int) -> None:
    official = pytest.importorskip("deepseek_recipe")
    outcomes = []
    for package in (official, ours):
        with pytest.raises(Exception) as caught:
            CALLS[number](package)
        outcomes.append((caught.type.__name__, str(caught.value)))
    assert outcomes[0] == outcomes[1]


REPRS: tuple[Callable[[Any], Any], ...] = (
    lambda m: m.SystemMessage("a\n"),
    lambda m: m.UserMessage("é\u0301", [m.UrlImageSource("u")]),
    lambda m: m.AssistantMessage("a", "r", [m.ToolCall("a", "b", "c")], True),
    lambda m: m.ToolMessage("t", "i"),
    lambda m: m.LatestReminderMessage("r"),
    lambda m: m.ToolCall('a"', "b", "\u200b"),
    lambda m: m.ToolDefinition("n", "d", None, False),
    lambda m: m.Conversation([m.UserMessage("a")], reasoning_effort="max"),
    lambda m: m.BytesImageSource(b"ab"),
    lambda m: m.DataUrlImageSource("d", "low", path="p"),
    lambda m: m.ModelVersion.DeepseekV4Pro,
)


@pytest.mark.parametrize("number", range(len(REPRS)))
def test_representations_are_the_official_ones(number: int) -> None:
    official = pytest.importorskip("deepseek_recipe")
    assert repr(REPRS[number](ours)) == repr(REPRS[number](official))


def test_a_request_is_used_up_even_by_a_failure() -> None:
    request = ours.ChatCompletionRequest({"model": "nobody", "messages": []})
    with pytest.raises(ours.ConversionError) as caught:
        request.convert(ours.ConversionOptions())
    assert caught.value.status_code == 400
    assert caught.value.body.startswith('{"error":{"message":"The supported API model names')
    with pytest.raises(RuntimeError, match="protocol request has been consumed"):
        request.convert(ours.ConversionOptions())
