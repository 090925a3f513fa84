"""A mock server that most tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live import ENDING, Live, running

from dsinfer_jax.server import ServerSettings
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
