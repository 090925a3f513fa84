"""Several processes of one run on this machine, each with emulated devices of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM_CACHE = Path(__file__).parents[2] / ".cache" / "test-programs"  # of tests/conftest.py
GENERATE = ("-m", "dsinfer_jax.generate")
_LONGEST = 1800.0  # seconds; on a busy machine programs compile for minutes


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str


class ProcessRun:
    """Processes that have been started; whatever happens in the block, none is left after it.

    Args:
        program: what each runs with Python.
        arguments: the same for each.
        count: of processes; 0: one, which knows of no others.
        devices: of each.
        folder: for what they print.
    """

    def __init__(
        self,
        program: Sequence[str],
        arguments: Sequence[str],
        count: int,
        devices: int,
        folder: Path,
    ) -> None:
        self._folder, port = folder, _free_port()
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "PYTHONUNBUFFERED": "1",
        }
        self._processes = []
        for process in range(max(count, 1)):
            hosts = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", str(count)]
            hosts += ["--process-id", str(process)]
            command = [sys.executable, *program, *arguments, *(hosts if count else [])]
            command += ["--cache-dir", str(PROGRAM_CACHE)]
            with (
                self._file(process, "out").open("w") as out,
                self._file(process, "err").open("w") as err,
            ):
                self._processes.append(
                    subprocess.Popen(command, stdout=out, stderr=err, env=environment)
                )

    def __enter__(self) -> "ProcessRun":
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def signal(self, process: int, number: signal.Signals) -> None:
        self._processes[process].send_signal(number)

    def out(self, process: int) -> str:
        """What a process has printed so far."""
        return self._file(process, "out").read_text(errors="replace")

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Raises AssertionError if a process ends before."""
        until = time.monotonic() + _LONGEST
        while not done():
            for number, process in enumerate(self._processes):
                assert process.poll() is None, self._file(number, "err").read_text()[-4000:]
            assert time.monotonic() < until
            time.sleep(0.1)

    def ended(self, process: int, seconds: float = _LONGEST) -> Ended:
        """Wait for the end of a process; raises TimeoutExpired."""
        code = self._processes[process].wait(seconds)
        err = self._file(process, "err").read_text(errors="replace")
        return Ended(code, self.out(process), err)

    def _file(self, process: int, name: str) -> Path:
        return self._folder / f"{name}{process}.txt"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
