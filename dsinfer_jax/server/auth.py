"""Who asks: API keys as the official SDKs send them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest

from dsinfer_jax.server.errors import RequestError

NO_KEY = "No valid API key was given; send one as 'Authorization: Bearer KEY' or as 'x-api-key'."


class ApiKeys:
    """The accepted keys. Without any, everybody is the tenant ""."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._digests = {owner: _digest(key) for owner, key in keys.items()}

    def tenant(self, headers: Mapping[str, str]) -> str:
        """The owner of the key that the headers carry; RequestError 401 without one."""
        if not self._digests:
            return ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(given)
        # every owner is compared, so that the time says nothing about the keys
        owners = [owner for owner, known in self._digests.items() if compare_digest(known, digest)]
        if not owners:
            raise RequestError(401, NO_KEY)
        return owners[0]


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
