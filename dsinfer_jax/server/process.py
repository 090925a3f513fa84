"""A process that serves an application with uvicorn and comes to rest on SIGTERM."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette

from dsinfer_jax.server.logs import log

LAST_SECONDS = 10.0  # for errors of requests that the drain has ended to reach their clients


class DrainingServer(uvicorn.Server):
    """Tells the application that it is about to end, so that it ends its requests itself."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._application = app

    @property
    def port(self) -> int:
        """The port that the server listens on, once it has started."""
        return self.servers[0].sockets[0].getsockname()[1]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log("listening", host=self.config.host, port=self.port)

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
