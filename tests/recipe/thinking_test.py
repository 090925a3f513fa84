"""A format for the answer does not turn thinking off (S11)."""

import pytest

from dsinfer_jax.recipe import ChatCompletionRequest, ConversionOptions, DeepseekV41Encoding

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FORMATS = {
    "text": None,
    "json_object": {"type": "json_object"},
    "json_schema": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
}


def ending(thinking: str, response_format: object) -> str:
    body = {
        "model": "DeepSeek-V4.1-Flash",
        "messages": [{"role": "user", "content": "Say a word as JSON."}],
        "thinking": {"type": thinking},
    }
    if response_format is not None:
        body["response_format"] = response_format
    conversation = ChatCompletionRequest(body).convert(ConversionOptions()).conversation
    return DeepseekV41Encoding().render_conversation(conversation).prompt[-8:]


@pytest.mark.parametrize("name", FORMATS)
def test_the_prompt_ends_with_the_mark_of_thinking_whatever_the_format(name: str) -> None:
    assert ending("enabled", FORMATS[name]).endswith("<think>")
    assert ending("disabled", FORMATS[name]).endswith("</think>")
