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


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at an address, taken but not listening yet. OSError names an address it cannot get.

    Until the server listens on it, connections are refused.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port}: {error}") from None
    return made


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
