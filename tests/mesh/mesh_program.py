"""Run by mesh_forward_test.py on emulated devices: meshes against one device, bit for bit.

Reads cases as JSON from its argument, prints as JSON which of them differ, and how.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from model_support import CONFIGS, SLOTS, Machine, blocks_of, bucket, piece

from dsinfer_jax import _jax
from dsinfer_jax.mesh.company import CopyTables, MeshCompany
from dsinfer_jax.mesh.exchange import EXCHANGES
from dsinfer_jax.mesh.expert_placement import Placement, PlaceSizes, even_placement
from dsinfer_jax.mesh.expert_weights import in_places
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.mesh.shardings import along, device_mesh, partition, placed
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import POLICIES
from dsinfer_jax.model.params import Params, Quantised, build_tree
from dsinfer_jax.model.plan import Plan, Slice, Truncation, decode_plan, prefill_plan

PREFILL = bucket(128)
COPIES = 4  # redundant places of each device
RANKS = along("sequences", "prefill")


@dataclass(frozen=True)
class Case:
    """One mesh, the exchange on it, and the truncation of prompts."""

    layout: MeshLayout
    exchange: str
    truncation: Truncation


class MeshMachine:
    """A model on a mesh, every rank with slots and blocks of its own."""

    def __init__(self, one: Machine, case: Case, random: np.random.Generator) -> None:
        self.config, self.numerics, self.case = one.config, one.numerics, case
        self.mesh, ranks = device_mesh(case.layout), case.layout.data_parallel
        experts, devices = one.config.n_routed_experts, case.layout.expert_parallel
        self.sizes = PlaceSizes.of(experts, COPIES * devices, devices)
        placement = random_placement(self.sizes, one.config.num_hidden_layers, random)
        self.tables = CopyTables(jnp.asarray(placement.copy_table), None)
        specs = build_tree(one.config, lambda spec: partition(spec.stacked_axes, "prefill"))
        self.specs = specs
        placed_experts = in_places(one.params.experts, placement.expert_at)
        params = padded_tables(replace(one.params, experts=placed_experts), self.mesh.size)
        self.params = placed(params, self.mesh, specs)
        whole = replace(
            one.sizes,
            slots=one.sizes.slots * ranks,
            blocks=one.sizes.blocks * ranks,
        )
        cache = caches.init(one.config, whole, one.numerics)
        self.cache_specs = replace(
            jax.tree.map(lambda _: P(None, RANKS), cache), recent_tokens=P(RANKS)
        )
        self.cache = placed(cache, self.mesh, self.cache_specs)
        self._programs: dict[Any, Any] = {}

    def run(self, plans: list[Plan]) -> np.ndarray:
        """Logits [ranks, outputs, vocab] of one plan for each rank."""
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *plans)
        key = jax.tree.map(np.shape, stacked), plans[0].producer.tile_rows
        program = self._programs.setdefault(str(key), self._program(plans[0]))
        self.cache, logits = program(self.params, self.tables, self.cache, stacked)
        return np.asarray(logits)

    def _program(self, plan: Plan) -> Any:
        config, numerics = self.config, self.numerics
        exchange = EXCHANGES[self.case.exchange]
        tile_rows, places = plan.producer.tile_rows, (self.sizes.per_rank, 0)

        def local(params: Params, tables: CopyTables, cache: Any, stacked: Plan) -> Any:
            own = jax.tree.map(lambda leaf: leaf[0], stacked)
            company = MeshCompany(exchange, tables, places, tile_rows)
            cache, result = forward(params, cache, own, config, numerics, company=company)
            return cache, result.logits[None]

        def step(params: Params, tables: CopyTables, cache: Any, stacked: Plan) -> Any:
            return jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(self.specs, P(), self.cache_specs, P(RANKS)),
                out_specs=(self.cache_specs, P(RANKS)),
                check_vma=False,
            )(params, tables, cache, stacked)

        return _jax.jit(step, donate=("cache",))


def random_placement(sizes: PlaceSizes, layers: int, random: np.random.Generator) -> Placement:
    rows = []
    for _ in range(layers):
        extra = random.integers(0, sizes.experts, sizes.redundant)
        rows.append(random.permutation(np.concatenate([np.arange(sizes.experts), extra])))
    placement = even_placement(sizes, np.stack(rows).astype(np.int32))
    placement.check()
    return placement


def padded_tables(params: Params, devices: int) -> Params:
    """Tables of the n-gram memory with rows that nobody asks for, so that they can be divided."""

    def padded(leaf: jax.Array) -> jax.Array:
        return jnp.pad(leaf, ((0, -leaf.shape[0] % devices), (0, 0)))

    engrams = tuple(
        replace(one, embed=Quantised(padded(one.embed.weight), padded(one.embed.scale)))
        for one in params.engrams
    )
    return replace(params, engrams=engrams)


def differences(one: Machine, case: Case) -> Iterator[str]:
    """What differs between the mesh and one device."""
    random = np.random.default_rng(list(case.layout.shape))
    mesh = MeshMachine(one, case, random)
    count = case.layout.data_parallel
    sequences = [
        [one.tokens(int(length), seed=rank * 10 + slot)
         for slot, length in enumerate(random.integers(1, 41, size=3 - rank % 2))]
        for rank in range(count)
    ]  # fmt: skip
    sequences[-1] = [] if count > 2 else sequences[-1]  # a rank with nothing to do
    slices: list[list[Slice]] = [
        [piece(tokens, 0, len(tokens) - 2, slot=slot, outputs=[len(tokens) - 3])
         for slot, tokens in enumerate(rank) if len(tokens) > 2]
        for rank in sequences
    ]  # fmt: skip
    plans = [prefill_plan(some, PREFILL, one.config, case.truncation) for some in slices]
    found = mesh.run(plans)
    caches_of_ranks = []
    for rank, plan in enumerate(plans):
        cache, wanted = one.step(one.params, one_cache(one), plan)
        caches_of_ranks.append(cache)
        rows = slice(sum(len(part.outputs) for part in slices[rank]))
        yield from compared(f"prefill of rank {rank}", found[rank], np.asarray(wanted), rows)

    plans = []
    for rank in sequences:
        tokens, start = np.zeros((SLOTS, 2), np.int32), np.full(SLOTS, -1, np.int32)
        for slot, sequence in enumerate(rank):
            if len(sequence) > 2:
                tokens[slot], start[slot] = sequence[-2:], len(sequence) - 2
        tables = np.stack([blocks_of(slot) for slot in range(SLOTS)])
        plans.append(decode_plan(tokens, start, tables, one.config))
    found = mesh.run(plans)
    for rank, plan in enumerate(plans):
        _, wanted = one.step(one.params, caches_of_ranks[rank], plan)
        active = np.asarray(plan.producer.positions) >= 0
        yield from compared(f"decode of rank {rank}", found[rank], np.asarray(wanted), active)


def one_cache(one: Machine) -> caches.Cache:
    return caches.init(one.config, one.sizes, one.numerics)


def compared(what: str, found: np.ndarray, wanted: np.ndarray, rows: Any) -> Iterator[str]:
    found, wanted = found[rows], wanted[rows]
    if not np.isfinite(wanted).all():
        yield f"{what}: the wanted logits are not finite"
    differ = found.view(np.uint32) != wanted.view(np.uint32)
    if differ.any():
        worst = np.abs(found - wanted).max()
        yield f"{what}: {differ.mean():.3f} of the logits differ, by up to {worst}"


def main() -> None:
    request = json.loads(sys.argv[1])
    one = Machine(CONFIGS["few_layers"](), POLICIES[request["numerics"]])
    result = {}
    for shape, exchange, keep in request["cases"]:
        truncation = Truncation("compact", keep) if keep else Truncation()
        case = Case(MeshLayout(*shape), exchange, truncation)
        result[str((shape, exchange, keep))] = list(differences(one, case))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
