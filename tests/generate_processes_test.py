"""Options of a run of several processes: what does not go together is one sentence."""

import re

import pytest

from dsinfer_jax.generate.options import parse
from dsinfer_jax.mesh.hosts import HostOptions

NAMED = ["--coordinator", "node0:1234", "--num-processes", "4", "--process-id", "3"]


def test_named_processes() -> None:
    job = parse([*NAMED, "--peer-timeout", "5", "--check-digests"])
    assert job.hosts == HostOptions("node0:1234", 4, 3, 5.0, True)


def test_processes_that_jax_finds() -> None:
    assert parse(["--distributed"]).hosts == HostOptions()


def test_one_process() -> None:
    assert parse([]).hosts is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (NAMED[:2], "--coordinator needs --num-processes; or use --distributed on a known"),
        (NAMED[2:], "--num-processes needs --coordinator"),
        ([*NAMED, "--distributed"], "--coordinator does not go with --distributed"),
        ([*NAMED, "--process-id", "4"], "--process-id is 4; it must be from 0 to 3"),
        ([*NAMED, "--num-processes", "0"], "--num-processes is 0; it must be 1 or more"),
        ([*NAMED, "--coordinator", "node0"], "--coordinator is 'node0'; it must be HOST:PORT"),
        ([*NAMED, "--peer-timeout", "0.5"], "--peer-timeout is 0.5; it must be 1 or more"),
        ([*NAMED, "--peer-timeout", "nan"], "--peer-timeout is nan; it must be 1 or more"),
        (["--check-digests"], "--check-digests is for several processes; add --coordinator"),
        ([*NAMED, "--interactive"], "--coordinator does not go with --interactive"),
        (["--distributed", "--interactive"], "--distributed does not go with --interactive"),
    ],
)
def test_options_that_cannot_be_used(arguments: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        parse(arguments)
