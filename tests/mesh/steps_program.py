"""Run by many_processes_test.py: the command line, with steps that need all processes for a model.

They go on until the process is ended; each is one line of output.
"""

import itertools
import sys
import time

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from dsinfer_jax.generate import main, run
from dsinfer_jax.generate.options import Job
from dsinfer_jax.mesh.hosts import Hosts
from dsinfer_jax.mesh.layout import AXES, MeshLayout
from dsinfer_jax.mesh.shardings import device_mesh, placed

PAUSE = 0.02  # seconds between two steps


def steps(job: Job, hosts: Hosts) -> int:
    """In place of `generate.run.run`."""
    count = jax.device_count()
    mesh = device_mesh(MeshLayout.of(count, count))
    summed = jax.jit(
        jax.shard_map(lambda own: lax.psum(own, AXES), mesh=mesh, in_specs=P(AXES), out_specs=P())
    )
    for step in itertools.count():
        given = np.full(count, step, np.int32)
        hosts.check_step("a sum", [("terms", given)])
        with hosts.waiting("a step"):
            total = np.asarray(summed(placed(given, mesh, P(AXES))))
        print(f"step {step}: {total}", flush=True)
        time.sleep(PAUSE)
    return 0


if __name__ == "__main__":
    run.run = steps  # type: ignore[assignment]
    sys.exit(main())
