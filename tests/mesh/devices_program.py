"""Run by many_processes_test.py as one of several processes: arrays of an engine without a model.

Prints as JSON what every process has to see alike; then the processes go two ways.
"""

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax.config import tiny
from dsinfer_jax.engine.devices import make_devices
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.generate.options import parse
from dsinfer_jax.mesh.hosts import Hosts, HostsError, join
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.model.numerics import RUNTIME

SLOTS, PLACES = 8, 3


def seen(hosts: Hosts) -> dict[str, Any]:
    """Arrays of all ranks as this process reads them."""
    ranks = jax.device_count()
    config, layout = tiny(), MeshLayout.of(ranks, ranks)
    sizes = EngineConfig.of(config, slots=SLOTS, layout=layout)
    devices = make_devices(config, sizes, RUNTIME, hosts)
    slots = np.arange(ranks * SLOTS * PLACES, dtype=np.int32).reshape(-1, PLACES)
    state = devices.by_rank({"drafts": slots, "laws": slots.astype(jnp.bfloat16)})
    slot, entry = devices.everywhere((np.int32(SLOTS + 1), np.full(PLACES, 77, np.int32)))
    drafts = jax.jit(lambda leaf, slot, entry: leaf.at[slot].set(entry))(
        state["drafts"], slot, entry
    )
    some = np.array([0, SLOTS + 1, ranks * SLOTS - 1])
    vectors = devices.stacked([np.full(2, rank, np.int32) for rank in range(ranks)])
    return {
        "processes": hosts.count,
        "addressable": len(jax.local_devices()),
        "drafts": devices.host(drafts[some]).tolist(),
        "laws": devices.host(state["laws"][some]).astype(float).tolist(),
        "vectors": devices.host(vectors).tolist(),
        "seeds": [hosts.fresh_seed() for _ in range(2)],
    }


def difference(hosts: Hosts) -> str:
    """What is said when the third step is given something else in the last process."""
    for step in range(1, 5):
        wrong = step == 3 and hosts.process == hosts.count - 1
        try:
            hosts.check_step("decode 8 x 1", [("draws.top_k", np.array([step + wrong], np.int32))])
        except HostsError as error:
            return str(error)
    return "nothing differs"


def main() -> None:
    options = parse(sys.argv[1:]).hosts
    assert options is not None
    hosts = join(options, print)
    print(json.dumps(seen(hosts) | {"difference": difference(hosts)}))
    hosts.leave()


if __name__ == "__main__":
    main()
