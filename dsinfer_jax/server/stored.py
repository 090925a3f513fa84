"""Stored Responses: the history that a next request may name, and the objects themselves."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.store import ResponseStore, StoredResponse, remember


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
