"""Stored Responses: the history that a next request may name, and the objects themselves."""

from __future__ import annotations

import json
from collections import OrderedDict
from time import time
from typing import Any

from dsinfer_jax.recipe.store import (
    DEFAULT_TIME_TO_LIVE,
    Clock,
    ResponseStore,
    StoredResponse,
    remember,
)


class SizedResponseStore:
    """Keeps responses in this process, as JSON, in so many bytes; the oldest go first.

    Used from one event loop. A response that alone is larger than everything is not kept.

    Attributes:
        size: bytes in use.
    """

    def __init__(
        self, largest: int, time_to_live: float = DEFAULT_TIME_TO_LIVE, clock: Clock = time
    ) -> None:
        self._largest = largest
        self._time_to_live = time_to_live
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, str | None, bytes]] = OrderedDict()
        self.size = 0

    def save(self, response: StoredResponse) -> None:
        """Keep a response, replacing one of the same id."""
        self.delete(response.id)
        items = json.dumps(response.items, ensure_ascii=False, separators=(",", ":")).encode()
        if len(items) > self._largest:
            return
        self._kept[response.id] = (self._expiry(), response.previous_id, items)
        self.size += len(items)
        self._drop_old()

    def load(self, id: str) -> StoredResponse | None:
        """The response, whose time to live begins anew, or None."""
        self._drop_old()
        found = self._kept.get(id)
        if found is None:
            return None
        self._kept[id] = (self._expiry(), *found[1:])
        self._kept.move_to_end(id)
        return StoredResponse(id, found[1], tuple(json.loads(found[2])))

    def delete(self, id: str) -> bool:
        """Forget a response; whether there was one."""
        self._drop_old()
        found = self._kept.pop(id, None)
        if found is not None:
            self.size -= len(found[2])
        return found is not None

    def _expiry(self) -> float:
        return self._clock() + self._time_to_live

    def _drop_old(self) -> None:
        now = self._clock()
        while self._kept:
            expires, _, items = next(iter(self._kept.values()))
            if expires > now and self.size <= self._largest:
                return
            self._kept.popitem(last=False)
            self.size -= len(items)


class TenantStore:
    """One tenant's part of a store: nobody reads the responses of others."""

    def __init__(self, store: ResponseStore, tenant: str) -> None:
        self._store = store
        self._prefix = f"{tenant}/"

    def save(self, response: StoredResponse) -> None:
        """Keep a response, replacing one of the same id."""
        previous = response.previous_id and self._prefix + response.previous_id
        self._store.save(StoredResponse(self._prefix + response.id, previous, response.items))

    def load(self, id: str) -> StoredResponse | None:
        """The response, whose time to live begins anew, or None."""
        found = self._store.load(self._prefix + id)
        if found is None:
            return None
        previous = found.previous_id and found.previous_id.removeprefix(self._prefix)
        return StoredResponse(id, previous, found.items)

    def delete(self, id: str) -> bool:
        """Forget a response; whether there was one."""
        return self._store.delete(self._prefix + id)


def keep(body: dict[str, Any], response: dict[str, Any], store: ResponseStore) -> None:
    """Remember a complete response and its object, unless the request said not to."""
    if body.get("store") is False:
        return
    remember(body, response, store)
    store.save(StoredResponse(_object_key(response["id"]), None, (response,)))


def load_object(id: str, store: ResponseStore) -> dict[str, Any] | None:
    """The response object as it was sent, or None."""
    found = store.load(_object_key(id))
    return None if found is None else found.items[0]


def delete_response(id: str, store: ResponseStore) -> bool:
    """Forget a response and its object; whether there was one."""
    there = store.delete(id)
    return store.delete(_object_key(id)) or there


def _object_key(id: str) -> str:
    return f"object:{id}"
