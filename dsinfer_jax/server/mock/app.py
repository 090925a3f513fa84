"""The server around the mock."""

from __future__ import annotations

from starlette.applications import Starlette

from dsinfer_jax.server.app import create_app
from dsinfer_jax.server.mock.source import MockOptions, MockSource
from dsinfer_jax.server.mock.wire import WireFaults
from dsinfer_jax.server.settings import ServerSettings


def create_mock_app(
    options: MockOptions | None = None, settings: ServerSettings | None = None
) -> Starlette:
    """A server without a model; `app.state.source` is its MockSource."""
    options = options or MockOptions()
    source = MockSource(options)
    app = create_app(source.infer, source.tokenizer, settings, snapshot=source.snapshot)
    app.add_middleware(WireFaults, fault=options.fault)
    app.state.source = source
    return app
