"""The options of a run of several processes. Imports nothing heavy."""

import argparse

from dsinfer_jax.mesh.hosts import DEFAULT_PEER_SECONDS, HostOptions


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """A group of options; `read_process_options` checks them."""
    group = parser.add_argument_group(
        "several processes (the same command in each of them; the first one prints)"
    )
    group.add_argument(
        "--coordinator", metavar="HOST:PORT", help="address of process 0, which listens there"
    )
    group.add_argument("--num-processes", metavar="N", type=int, help="how many there are")
    group.add_argument(
        "--process-id", metavar="I", type=int, help="which of them this is, from 0 on"
    )
    group.add_argument(
        "--distributed", action="store_true",
        help="instead of these three: let jax find them (TPU pods, Slurm, Kubernetes, Open MPI)",
    )  # fmt: skip
    group.add_argument(
        "--peer-timeout", metavar="SECONDS", type=float, default=DEFAULT_PEER_SECONDS,
        help="a process that is silent for so long is lost, and no step may take longer; default: "
        f"{DEFAULT_PEER_SECONDS:g}",
    )  # fmt: skip
    group.add_argument(
        "--check-digests",
        action="store_true",
        help="before each step, compare what the processes are about to run",
    )


def read_process_options(options: argparse.Namespace) -> HostOptions | None:
    """How this process finds the others; None: it is alone.

    Raises:
        ValueError: options that cannot be used, or not together, in one sentence.
    """
    address, count, process = options.coordinator, options.num_processes, options.process_id
    named = {"--coordinator": address, "--num-processes": count, "--process-id": process}
    given = [name for name, value in named.items() if value is not None]
    if not given and not options.distributed:
        if options.check_digests:
            raise ValueError("--check-digests is for several processes; add --coordinator")
        return None
    if given and options.distributed:
        raise ValueError(f"{given[0]} does not go with --distributed, which finds it; drop one")
    if given and len(given) < len(named):
        missing = next(name for name in named if name not in given)
        raise ValueError(f"{given[0]} needs {missing}; or use --distributed on a known cluster")
    if given:
        _check_named(address, count, process)
    if not options.peer_timeout >= 1:
        raise ValueError(f"--peer-timeout is {options.peer_timeout:g}; it must be 1 or more")
    return HostOptions(address, count, process, options.peer_timeout, options.check_digests)


def _check_named(address: str, count: int, process: int) -> None:
    if not address.rpartition(":")[2].isdigit() or not address.rpartition(":")[0]:
        raise ValueError(f"--coordinator is {address!r}; it must be HOST:PORT")
    if count < 1:
        raise ValueError(f"--num-processes is {count}; it must be 1 or more")
    if not 0 <= process < count:
        raise ValueError(f"--process-id is {process}; it must be from 0 to {count - 1}")
