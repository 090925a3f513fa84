"""The version seam: what every compiled program gets, and jax names that differ between versions.

All use of jax that changed between 0.10 and 0.12 goes through this module, and so do the compiler
options, so that no program can forget them.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed

# Without it XLA removes float32 -> narrow -> float32 round trips on GPUs (jax-practice.md 7.1).
ROUNDING_OPTIONS = {"xla_allow_excess_precision": False}
# XLA:CPU hands products and, above some size, sums to a library that adds in another order.
# Products always, sums never: then a row's bits depend on no row count (docs/batch_invariance.md).
INVARIANCE_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
COMPILER_OPTIONS: dict[str, bool | str] = ROUNDING_OPTIONS | INVARIANCE_OPTIONS

_BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"  # also of a program found in cache
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


def jit(function: Callable[..., Any], *, donate: tuple[str, ...] = ()) -> Any:
    """`jax.jit` with the options of every program; `donate` names arguments given away."""
    return jax.jit(function, donate_argnames=donate, compiler_options=COMPILER_OPTIONS)


def keep_programs(folder: Path | None, say: Callable[[str], None]) -> None:
    """Keep compiled programs in `folder`, every one of them, for later processes; None: nowhere.

    If the folder cannot be made, `say` is told, and they are not kept. Call it before the first
    program compiles. The folder is trusted: programs in it are run.
    """
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        say(f"compiled programs are not kept: {folder} cannot be made ({error.strerror})")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@dataclass
class CompileEvents:
    """How often this process compiled.

    Attributes:
        programs: programs handed to the compiler, those found in the persistent cache included.
        hits: those of them that were found in the persistent cache, by the thread that compiled.
    """

    programs: int = 0
    hits: Counter[int] = field(default_factory=Counter)

    @property
    def hits_of_thread(self) -> int:
        """Programs that the calling thread found in the persistent cache."""
        return self.hits[threading.get_ident()]

    def _on_duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.programs += event == _BACKEND_COMPILE

    def _on_event(self, event: str, **_: str | int) -> None:
        self.hits[threading.get_ident()] += event == _CACHE_HIT


@cache
def compile_events() -> CompileEvents:
    """The process's counters; they run from the first call on, because jax cannot look back."""
    events = CompileEvents()
    jax.monitoring.register_event_duration_secs_listener(events._on_duration)
    jax.monitoring.register_event_listener(events._on_event)
    return events


class SharedTexts:
    """Texts by key that all processes of a run see: the store of jax's coordinator.

    Every method raises ConnectionError when the coordinator does not answer. The store has no
    public name in jax.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, text: str) -> None:
        """Set a text, new or again."""
        _answered(self._client.key_value_set, key, text, allow_overwrite=True)

    def wait(self, key: str, seconds: float) -> str | None:
        """A text as soon as it is there; None if it is not by then."""
        try:
            return str(self._client.blocking_key_value_get(key, int(seconds * 1000)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise ConnectionError(_first_line(error)) from None

    def folder(self, key: str) -> dict[str, str]:
        """The texts whose keys are `key`/name, by name."""
        entries = _answered(self._client.key_value_dir_get, f"{key}/")
        return {path.rpartition("/")[2]: text for path, text in entries}

    def forget(self, key: str) -> None:
        """Delete all texts of a folder."""
        _answered(self._client.key_value_delete, key)


def join_processes(
    coordinator: str | None, count: int | None, process: int | None, peer_seconds: int
) -> tuple[SharedTexts, int, int]:
    """`jax.distributed.initialize`; returns the common store, this process and how many there are.

    Args:
        coordinator, count, process: None: jax finds all three where it knows the cluster.
        peer_seconds: jax's own limits are twice as long, so that who watches with this one speaks
            first.

    Raises:
        ConnectionError: the others were not found.
        ValueError: jax knows no cluster here.
    """
    # its handler of SIGTERM would keep a process alive that is told to end (jax-practice.md 12)
    jax.config.update("jax_enable_preemption_service", False)
    limit = max(2 * peer_seconds, 10)
    try:
        jax.distributed.initialize(
            coordinator, count, process,
            cluster_detection_method=None if coordinator is None else "deactivate",
            heartbeat_timeout_seconds=limit, shutdown_timeout_seconds=limit,
        )  # fmt: skip
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(_first_line(error)) from None
    state = distributed.global_state
    return SharedTexts(state.client), state.process_id, state.num_processes


def _answered(ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return ask(*arguments, **options)
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
