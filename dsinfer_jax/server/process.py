"""A process that serves an application with uvicorn and comes to rest on SIGTERM."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette

LAST_SECONDS = 10.0  # for errors of requests that the drain has ended to reach their clients


class DrainingServer(uvicorn.Server):
    """Tells the application that it is about to end, so that it ends its requests itself."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._application = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.state.admission.drain()
        await super().shutdown(sockets)


def make_server(app: Starlette, host: str, port: int, **options: Any) -> DrainingServer:
    """A server that is ready to run; `options` are further ones of uvicorn.Config."""
    settings = app.state.service.settings
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.drain_timeout + LAST_SECONDS),
        **options,
    )
    return DrainingServer(config, app)
