"""One engine for all tests of this room: its programs compile once."""

import pytest

from dsinfer_jax import demo
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm import LLM


@pytest.fixture(scope="session")
def tiny_llm() -> LLM:
    """The demo model in the exact policy, with the sizes of the command line's defaults."""
    config, params, tokenizer = demo.load()
    return LLM(config, params, TextCodec(tokenizer, config.bos_token_id), numerics="exact")
