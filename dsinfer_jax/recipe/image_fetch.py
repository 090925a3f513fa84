"""Downloading images (recipe.md 6.4).

The address filter sees every address of every hop before anything is sent to it, and the connection
goes to the very address that was allowed: a name that resolves differently a moment later changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from dsinfer_jax.recipe.image_errors import ImagePlace, failed_download, too_large
from dsinfer_jax.recipe.values import Value, string, unsigned

MAXIMUM_IMAGE_BYTES = 32 << 20
MAXIMUM_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_URL_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"

DestinationFilter = Callable[[str, str], bool]


class ReqwestImageFetcher(Value):
    """Downloads images over http and https, following at most 5 redirects.

    Without a filter it connects to any address: servers that take URLs from strangers should set
    one with ``with_destination_filter``.
    """

    __slots__ = ("_destination_filter", "_max_bytes")
    _max_bytes: int
    _destination_filter: DestinationFilter | None

    def __new__(cls) -> ReqwestImageFetcher:
        return cls._make(MAXIMUM_IMAGE_BYTES, None)

    @classmethod
    def _make(
        cls, max_bytes: int, destination_filter: DestinationFilter | None
    ) -> ReqwestImageFetcher:
        self = object.__new__(cls)
        self._max_bytes = max_bytes
        self._destination_filter = destination_filter
        return self

    @staticmethod
    def with_max_bytes(max_bytes: int) -> ReqwestImageFetcher:
        """A fetcher that gives up after this many bytes."""
        return ReqwestImageFetcher._make(unsigned("max_bytes", max_bytes, 64), None)

    def with_destination_filter(self, destination_filter: DestinationFilter) -> ReqwestImageFetcher:
        """A fetcher that connects only where ``destination_filter(host, address)`` is ``True``.

        It is asked for every address of every host, of redirects too. Anything but a bool, and any
        exception, rejects. No proxy is used.
        """
        if not callable(destination_filter):
            raise TypeError("destination_filter must be callable")
        return self._make(self._max_bytes, destination_filter)

    def fetch(self, url: str) -> bytes:
        """The bytes at ``url``; ``ImageError`` of kind ``Fetch``, ``FetchStatus``,
        ``DestinationRejected`` or ``ImageTooLarge``."""
        return self._fetch(string("url", url), ImagePlace())

    def _fetch(self, url: str, place: ImagePlace) -> bytes:
        # Loading the network modules takes longer than the rest of the package.
        from dsinfer_jax.recipe.http_hop import HTTPException

        current = url
        for _ in range(MAXIMUM_REDIRECTS + 1):
            try:
                response = self._open(current, url, place)
                with response:
                    status = response.status
                    location = response.getheader("Location")
                    if status in _REDIRECTS and location:
                        current = urljoin(current, location)
                        continue
                    if not 200 <= status < 300:
                        raise failed_download("FetchStatus", url, place, status >= 500)
                    data = response.read(self._max_bytes + 1)
            except (OSError, ValueError, HTTPException):
                raise failed_download("Fetch", url, place, True) from None
            if len(data) > self._max_bytes:
                raise too_large(self._max_bytes, place)
            return data
        raise failed_download("Fetch", url, place, True)

    def _open(self, current: str, url: str, place: ImagePlace) -> Any:
        from dsinfer_jax.recipe.http_hop import open_anywhere, open_at

        target = urlsplit(quote(current, safe=_URL_CHARACTERS))
        if target.scheme not in ("http", "https") or not target.hostname:
            raise ValueError("not an http address")
        if self._destination_filter is None:
            return open_anywhere(target)
        address = self._allowed_address(target.hostname, target)
        if address is None:
            raise failed_download("DestinationRejected", url, place, False)
        return open_at(address, target)

    def _allowed_address(self, host: str, target: SplitResult) -> str | None:
        import socket

        port = target.port or (443 if target.scheme == "https" else 80)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for address in dict.fromkeys(str(entry[4][0]) for entry in found):
            if self._is_allowed(host, address):
                return address
        return None

    def _is_allowed(self, host: str, address: str) -> bool:
        assert self._destination_filter is not None
        try:
            return self._destination_filter(host, address) is True
        except Exception:  # whatever the filter does, a failure rejects
            return False
