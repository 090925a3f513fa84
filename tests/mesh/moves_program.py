"""Run by expert_weights_test.py on emulated devices: moves of weights against a plain index."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import PartitionSpec as P

from dsinfer_jax.mesh.expert_weights import AXES, move_program
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.mesh.shardings import device_mesh, placed

LAYERS, PLACES = 3, 8


def main() -> None:
    random = np.random.default_rng(0)
    result = {}
    for shape in json.loads(sys.argv[1]):
        mesh = device_mesh(MeshLayout(*shape))
        experts = {
            "codes": random.integers(0, 256, (LAYERS, PLACES, 4, 6), np.uint8),
            "scale": random.integers(0, 256, (LAYERS, PLACES, 4), np.uint8),
        }
        moved = placed(jax.tree.map(jnp.asarray, experts), mesh, P(None, AXES))
        turned = Format(Layout((0, 1, 3, 2)), moved["codes"].sharding)
        moved["codes"] = jax.device_put(moved["codes"], turned)
        program = move_program(moved, mesh)
        wrong = []
        for layer in (1, 0, 1):
            source = random.integers(0, PLACES, PLACES).astype(np.int32)
            moved = program(moved, np.int32(layer), source)
            for leaf in experts.values():
                leaf[layer] = leaf[layer, source]
            for name, leaf in experts.items():
                if not np.array_equal(np.asarray(moved[name]), leaf):
                    wrong.append(f"{name} after a move of layer {layer}")
            if moved["codes"].format.layout.major_to_minor != (0, 1, 3, 2):
                wrong.append(f"order in memory after a move of layer {layer}")
        result[str(shape)] = wrong
    print(json.dumps(result))


if __name__ == "__main__":
    main()
