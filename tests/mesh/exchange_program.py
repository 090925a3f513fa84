"""Run by exchange_test.py on emulated devices: exchanges against pairs computed one by one, and
rows of divided tables.

CPUs have no `ragged_all_to_all`: it is put in here as its definition says.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from dsinfer_jax.mesh.company import CopyTables, MeshCompany
from dsinfer_jax.mesh.exchange import EXCHANGES, Axis
from dsinfer_jax.mesh.layout import AXES, MeshLayout
from dsinfer_jax.mesh.shardings import device_mesh

Array = jax.Array
ROWS, CHOICES, HIDDEN = 6, 3, 8


def ragged_all_to_all(
    operand: Array, output: Array, input_offsets: Array, send_sizes: Array, output_offsets: Array,
    recv_sizes: Array, *, axis_name: Axis,
) -> Array:  # fmt: skip
    """Rows from `input_offsets[d]` on, `send_sizes[d]` of them, come to those from
    `output_offsets[d]` on in the output of device d."""
    me = lax.axis_index(axis_name)
    sent = lax.all_gather(operand, axis_name)
    starts, sizes, targets = (
        lax.all_gather(one, axis_name)[:, me] for one in (input_offsets, send_sizes, output_offsets)
    )
    row = jnp.arange(sent.shape[1])
    for source in range(sent.shape[0]):
        target = row - starts[source] + targets[source]
        is_mine = (row >= starts[source]) & (row < starts[source] + sizes[source])
        place = jnp.where(is_mine, target, len(output))
        output = output.at[place].set(sent[source], mode="drop")
    # whoever receives must have been told the truth
    return jnp.where(jnp.all(recv_sizes == sizes), output, jnp.full_like(output, 77))


def experts(rows: Array, pair_rows: Array, places: Array, weights: Array) -> Array:
    """Each place does something else; none gives zeros."""
    factor = (places + 1) * 100 + lax.axis_index(AXES) + 1
    outputs = rows.at[pair_rows].get(mode="fill", fill_value=0) * factor[:, None] + weights[:, None]
    return jnp.where(places[:, None] < 0, 0, outputs)


def expected(rows: np.ndarray, places: np.ndarray, weights: np.ndarray, held: int) -> np.ndarray:
    """Outputs [devices * rows, choices, hidden] of numpy, pair by pair."""
    found = np.zeros((*places.shape, HIDDEN), np.float32)
    for row, choice in np.argwhere(places >= 0):
        device, local = divmod(int(places[row, choice]), held)
        factor = np.float32((local + 1) * 100 + device + 1)
        found[row, choice] = rows[row] * factor + weights[row, choice]
    return found


def main() -> None:
    lax.ragged_all_to_all = ragged_all_to_all
    random = np.random.default_rng(0)
    result: dict[str, list[str]] = {}
    for devices, held in json.loads(sys.argv[1]):
        mesh = device_mesh(MeshLayout.of(devices, devices))
        rows = random.integers(-8, 8, (devices * ROWS, HIDDEN)).astype(np.float32)
        weights = random.integers(0, 4, (devices * ROWS, CHOICES)).astype(np.float32)
        count = devices * held
        every = np.stack([random.permutation(count)[:CHOICES] for _ in range(devices * ROWS)])
        some = np.where(random.random(every.shape) < 0.3, -1, every)
        crowded = np.where(every < held, every, -1)  # all to one device
        for what, places in {"some": some, "one": crowded, "none": 0 * every - 1}.items():
            wanted = expected(rows, places, weights, held).reshape(-1, HIDDEN)
            for name, exchange in EXCHANGES.items():

                def local(*leaves: Array, exchange=exchange, held=held) -> Array:
                    return exchange(*leaves, held, AXES, experts)

                program = jax.jit(
                    jax.shard_map(
                        local, mesh=mesh, in_specs=P(AXES), out_specs=P(AXES), check_vma=False
                    )
                )
                found = program(rows, places.astype(np.int32), weights)
                case = f"{name}, {devices} devices with {held} places, {what}"
                result[case] = [] if np.array_equal(found, wanted) else [str(found - wanted)]
        table = random.integers(0, 256, (count, HIDDEN)).astype(np.uint8)
        for what, asked in {
            "any": random.integers(0, count, (devices * ROWS, CHOICES)),
            "the same": np.full((devices * ROWS, CHOICES), count - 1),
        }.items():
            for name, exchange in EXCHANGES.items():
                company = MeshCompany(exchange, CopyTables(None, None), (0, 0), 8)
                lookup = jax.jit(
                    jax.shard_map(
                        company.table_rows, mesh=mesh, in_specs=P(AXES), out_specs=P(AXES),
                        check_vma=False,
                    )
                )  # fmt: skip
                found = lookup({"codes": table, "scale": table[:, :1]}, asked.astype(np.int32))
                wrong = not np.array_equal(found["codes"], table[asked])
                wrong |= not np.array_equal(found["scale"], table[asked, :1])
                result[f"table, {name}, {devices} devices of {held} rows, {what}"] = [
                    "differs"
                ] * wrong
    print(json.dumps(result))


if __name__ == "__main__":
    main()
