"""Fixtures of the stream tests."""

from __future__ import annotations

import pytest
from stream_support import TOKENIZER_JSON, Streams

import dsinfer_jax.recipe as recipe


@pytest.fixture(scope="session")
def streams() -> Streams:
    """Streams of text pieces."""
    return Streams(recipe)


@pytest.fixture(scope="session")
def id_streams() -> Streams:
    """Streams of token ids."""
    return Streams(recipe, TOKENIZER_JSON)
