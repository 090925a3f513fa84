"""The store of responses: its size in bytes, its time to live, and tenants."""

from __future__ import annotations

from typing import Any

from dsinfer_jax.recipe.store import StoredResponse
from dsinfer_jax.server.stored import SizedResponseStore, TenantStore


def response(id: str, letters: int = 10, previous: str | None = None) -> StoredResponse:
    return StoredResponse(id, previous, ({"text": "x" * letters},))


def test_it_gives_back_what_was_kept() -> None:
    store = SizedResponseStore(1_000)
    store.save(response("a"))
    store.save(response("b", previous="a"))
    assert store.load("a") == response("a")
    assert store.load("b") == response("b", previous="a")
    assert store.load("c") is None
    assert store.delete("a")
    assert not store.delete("a")
    assert store.load("a") is None


def test_it_stays_within_its_size() -> None:
    store = SizedResponseStore(1_000)
    for number in range(50):
        store.save(response(str(number), 100))
        assert store.size <= 1_000
    assert store.load("49") is not None
    assert store.load("0") is None
    store.save(response("49", 5))
    size = store.size
    store.save(response("huge", 2_000))
    assert store.load("huge") is None
    assert store.size == size  # nothing had to go for it


def test_what_was_used_lately_stays() -> None:
    store = SizedResponseStore(350)
    for id in "abc":
        store.save(response(id, 100))
        store.load("a")
    store.save(response("d", 100))  # room for three
    assert [id for id in "abcd" if store.load(id)] == ["a", "c", "d"]


def test_nothing_is_kept_for_ever() -> None:
    now = [0.0]
    store = SizedResponseStore(1_000, time_to_live=10.0, clock=lambda: now[0])
    store.save(response("a"))
    now[0] = 9.0
    assert store.load("a") is not None
    now[0] = 18.0
    assert store.load("a") is not None
    now[0] = 28.0
    assert store.load("a") is None
    assert store.size == 0


def test_tenants_do_not_meet() -> None:
    store = SizedResponseStore(1_000)
    ann, bob = TenantStore(store, "ann"), TenantStore(store, "bob")
    ann.save(response("a"))
    ann.save(response("b", previous="a"))
    found: Any = ann.load("b")
    assert (found.id, found.previous_id) == ("b", "a")
    assert bob.load("a") is None
    assert not bob.delete("a")
    assert ann.delete("a")
