"""One engine for all tests of this room: its programs compile once."""

import noise_model
import pytest
from draft_support import Drafted

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm import LLM


@pytest.fixture(scope="session")
def tiny_llm() -> LLM:
    """The model of noise in the exact policy, with the sizes of the command line's defaults."""
    config, params, tokenizer = noise_model.load()
    return LLM(config, params, TextCodec(tokenizer, config.bos_token_id), numerics="exact")


@pytest.fixture(scope="session", params=[0, 20], ids=["whole", "kept"])
def small_llm(request: pytest.FixtureRequest) -> LLM:
    """A pool of nine blocks, without and with consumer truncation."""
    config, params, _ = noise_model.load()
    return LLM(
        config, params, numerics="exact", max_model_len=700, blocks=9, prefill_rows=(64,),
        keep_tokens=request.param,
    )  # fmt: skip


@pytest.fixture(scope="session")
def drafted() -> Drafted:
    return Drafted()
