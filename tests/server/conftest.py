"""A mock server that most tests share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from live import ENDING, Live, running

from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.server import InferenceJob, ServerSettings
from dsinfer_jax.server.engine_source import EngineSource
from dsinfer_jax.server.mock import create_mock_app


@pytest.fixture(scope="session", autouse=True)
def every_server_ends() -> Iterator[None]:
    """After the tests, no server is left."""
    yield
    for thread in ENDING:
        thread.join(20)
        assert not thread.is_alive(), "a server did not end"


@pytest.fixture(scope="session")
def mock() -> Iterator[Live]:
    """The mock with default settings, but for a fast ping."""
    with running(create_mock_app(settings=ServerSettings(ping_interval=0.2))) as live:
        yield live


@pytest.fixture(scope="session")
def noise_llm() -> Any:
    """The model of noise in the exact policy, with the sizes that the tests of the engine have."""
    import noise_model

    from dsinfer_jax.engine.detokenise import TextCodec
    from dsinfer_jax.engine.llm import LLM

    config, params, tokenizer = noise_model.load()
    return LLM(config, params, TextCodec(tokenizer, config.bos_token_id), numerics="exact")


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of models go on to their limits, but for those with a grammar."""
    params = EngineSource._params

    def without_end(source: EngineSource, job: InferenceJob) -> SamplingParams:
        made = params(source, job)
        return replace(made, ignore_eos=made.structured_output is None)

    monkeypatch.setattr(EngineSource, "_params", without_end)
