"""Processes of a run as threads of one, with a store in memory."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dsinfer_jax.mesh.hosts import Hosts, HostsError


class Texts:
    """A store in this process."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.answers = True
        self._changed = threading.Condition()

    def put(self, key: str, text: str) -> None:
        self._check()
        with self._changed:
            self.texts[key] = text
            self._changed.notify_all()

    def wait(self, key: str, seconds: float) -> str | None:
        self._check()
        with self._changed:
            self._changed.wait_for(lambda: key in self.texts, seconds)
            return self.texts.get(key)

    def folder(self, key: str) -> dict[str, str]:
        self._check()
        with self._changed:
            found = {name.rpartition("/"): text for name, text in self.texts.items()}
        return {name: text for (parent, _, name), text in found.items() if parent == key}

    def forget(self, key: str) -> None:
        with self._changed:
            for name in [one for one in self.texts if one.startswith(f"{key}/")]:
                del self.texts[name]

    def _check(self) -> None:
        if not self.answers:
            raise ConnectionError("no answer")


def together(count: int, work: Callable[[Hosts], Any], **options: Any) -> list[Any]:
    """What `work` returns in each of so many processes, or the sentence it is refused with."""
    texts = Texts()

    def one(process: int) -> Any:
        hosts = Hosts(texts, process, count, **options)
        try:
            return work(hosts)
        except HostsError as error:
            return str(error)
        finally:
            hosts._watch.end()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))
