"""Remembered responses, for ``previous_response_id`` (an extension; the reference ignores it).

A server calls ``with_history`` before it reads a Responses body and ``remember`` when the response
is complete. Each response keeps only its own items and the id of the one before it; reading a
conversation walks back and renews the time to live of everything in it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import time
from typing import Any, Protocol

from dsinfer_jax.recipe.values import conversion_error

DEFAULT_TIME_TO_LIVE = 30 * 24 * 3600.0
"""Seconds that a response is kept after it was last used."""

Item = dict[str, Any]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What a response adds to a conversation: its input items and its output items."""

    id: str
    previous_id: str | None
    items: tuple[Item, ...]


class ResponseStore(Protocol):
    """Where responses are kept. Implementations may be used from several threads."""

    def save(self, response: StoredResponse) -> None:
        """Keep a response, replacing one of the same id."""

    def load(self, id: str) -> StoredResponse | None:
        """The response, whose time to live begins anew, or ``None``."""

    def delete(self, id: str) -> bool:
        """Forget a response; whether there was one."""


class InMemoryResponseStore:
    """Keeps responses in this process; at most ``maximum`` of them, the oldest go first."""

    def __init__(
        self,
        time_to_live: float = DEFAULT_TIME_TO_LIVE,
        maximum: int = 10_000,
        clock: Clock = time,
    ) -> None:
        self._time_to_live = time_to_live
        self._maximum = maximum
        self._clock = clock
        self._lock = Lock()
        self._responses: dict[str, tuple[float, StoredResponse]] = {}

    def save(self, response: StoredResponse) -> None:
        """Keep a response, replacing one of the same id."""
        with self._lock:
            self._responses.pop(response.id, None)
            self._keep(response)
            self._drop_old()

    def load(self, id: str) -> StoredResponse | None:
        """The response, whose time to live begins anew, or ``None``."""
        with self._lock:
            self._drop_old()
            found = self._responses.pop(id, None)
            if found is None:
                return None
            self._keep(found[1])
            return found[1]

    def delete(self, id: str) -> bool:
        """Forget a response; whether there was one."""
        with self._lock:
            self._drop_old()
            return self._responses.pop(id, None) is not None

    def _keep(self, response: StoredResponse) -> None:
        self._responses[response.id] = (self._clock() + self._time_to_live, response)

    def _drop_old(self) -> None:
        now = self._clock()
        while self._responses:
            id, (expires, _) = next(iter(self._responses.items()))
            if expires > now and len(self._responses) <= self._maximum:
                return
            del self._responses[id]


class SqliteResponseStore:
    """Keeps responses in an SQLite file, which several processes may share."""

    def __init__(
        self, path: str, time_to_live: float = DEFAULT_TIME_TO_LIVE, clock: Clock = time
    ) -> None:
        self._time_to_live = time_to_live
        self._clock = clock
        self._lock = Lock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS responses "
            "(id TEXT PRIMARY KEY, previous_id TEXT, items TEXT NOT NULL, expires REAL NOT NULL)"
        )
        self._database.execute("CREATE INDEX IF NOT EXISTS expiry ON responses (expires)")

    def save(self, response: StoredResponse) -> None:
        """Keep a response, replacing one of the same id."""
        items = json.dumps(response.items, ensure_ascii=False)
        with self._lock:
            now = self._clock()
            self._database.execute("DELETE FROM responses WHERE expires <= ?", (now,))
            self._database.execute(
                "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?)",
                (response.id, response.previous_id, items, now + self._time_to_live),
            )

    def load(self, id: str) -> StoredResponse | None:
        """The response, whose time to live begins anew, or ``None``."""
        with self._lock:
            now = self._clock()
            row = self._database.execute(
                "UPDATE responses SET expires = ? WHERE id = ? AND expires > ? "
                "RETURNING previous_id, items",
                (now + self._time_to_live, id, now),
            ).fetchone()
        return None if row is None else StoredResponse(id, row[0], tuple(json.loads(row[1])))

    def delete(self, id: str) -> bool:
        """Forget a response; whether there was one."""
        with self._lock:
            now = self._clock()
            cursor = self._database.execute(
                "DELETE FROM responses WHERE id = ? AND expires > ?", (id, now)
            )
            return cursor.rowcount > 0

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def with_history(body: dict[str, Any], store: ResponseStore) -> dict[str, Any]:
    """The body with the items of its ``previous_response_id`` in front of its own input.

    Instructions are not taken over: each request gives its own. Raises ``ConversionError`` when the
    response, or one before it, is not known.
    """
    previous = body.get("previous_response_id")
    if previous is None:
        return body
    links: list[StoredResponse] = []
    id = previous
    while id is not None:
        link = store.load(id)
        if link is None:
            raise conversion_error(f"Previous response with id '{previous}' not found.")
        links.append(link)
        id = link.previous_id
    history = [item for link in reversed(links) for item in link.items]
    return {**body, "input": history + input_items(body)}


def input_items(body: dict[str, Any]) -> list[Item]:
    """The input of a body as items."""
    given = body.get("input")
    if given is None:
        return []
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given)


def remember(body: dict[str, Any], response: dict[str, Any], store: ResponseStore) -> None:
    """Keep a complete response, unless the request said ``"store": false``.

    ``body`` is the request as the client sent it, ``response`` the object that was sent back.
    Output items are good input items as they are.
    """
    if body.get("store") is False:
        return
    items = (*input_items(body), *response["output"])
    store.save(StoredResponse(response["id"], body.get("previous_response_id"), items))
