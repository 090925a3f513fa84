"""One engine for all tests of this room: its programs compile once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsinfer_jax import _jax, demo
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm import LLM

# Compiled programs outlive a run here; the command line's tests share them.
PROGRAM_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "test-programs"


@pytest.fixture(scope="session", autouse=True)
def program_cache() -> Iterator[None]:
    _jax.use_compilation_cache(PROGRAM_CACHE)
    yield


@pytest.fixture(scope="session")
def tiny_llm() -> LLM:
    """The demo model in the exact policy, with the sizes of the command line's defaults."""
    config, params, tokenizer = demo.load()
    return LLM(config, params, TextCodec(tokenizer, config.bos_token_id), numerics="exact")
