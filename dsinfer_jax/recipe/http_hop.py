"""One HTTP request without redirects, to anywhere or to one address (recipe.md 6.4)."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from http.client import HTTPException
from typing import Any
from urllib.parse import SplitResult, unquote

__all__ = ["HTTPException", "open_anywhere", "open_at"]

TIMEOUT_SECONDS = 30.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are followed by the fetcher, which checks each hop."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def open_anywhere(target: SplitResult) -> Any:
    """An open response, through the proxy of the environment if there is one."""
    opener = urllib.request.build_opener(_NoRedirects)
    place = target._replace(netloc=target.netloc.rpartition("@")[2])
    request = urllib.request.Request(place.geturl(), headers=_credentials(target))
    try:
        return opener.open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as answer:
        return _Answer(answer)


def _credentials(target: SplitResult) -> dict[str, str]:
    """The header for a user and password in the address."""
    if target.username is None:
        return {}
    pair = f"{unquote(target.username)}:{unquote(target.password or '')}"
    return {"Authorization": "Basic " + b64encode(pair.encode()).decode()}


class _Answer:
    """A response that ``urllib`` raised as an error."""

    def __init__(self, error: urllib.error.HTTPError) -> None:
        self._error = error
        self.status = error.code

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *unused: Any) -> None:
        self._error.close()

    def getheader(self, name: str) -> str | None:
        return self._error.headers.get(name)

    def read(self, size: int) -> bytes:
        return self._error.read(size)


def open_at(address: str, target: SplitResult) -> Any:
    """An open response of ``target`` from one address."""
    host, secure = target.hostname or "", target.scheme == "https"
    port = target.port or (443 if secure else 80)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    plain = socket.create_connection((address, port), TIMEOUT_SECONDS)
    if secure:
        context = ssl.create_default_context()
        connection.sock = context.wrap_socket(plain, server_hostname=host)
    else:
        connection.sock = plain
    path = target.path or "/"
    resource = f"{path}?{target.query}" if target.query else path
    connection.request("GET", resource, headers=_credentials(target))
    return connection.getresponse()
