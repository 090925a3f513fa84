"""Where an engine's arrays lie, and how a step runs over them: on one device, or on a mesh.

On a mesh every rank has slots, blocks and rows of its own (docs/sharding.md). Arrays of the host
are those of all ranks one after the other, as are rows of samples: slot 3 of rank 2 is slot
`2 * slots + 3`. Programs see the arrays of one rank.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from itertools import chain
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dsinfer_jax.checkpoint import LeafPlace
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.expert_mover import ExpertMover
from dsinfer_jax.engine.packing import Packing
from dsinfer_jax.engine.steps import EngineState, Outcome, Step
from dsinfer_jax.engine.weights import StoredWeights, leaf_places
from dsinfer_jax.mesh.company import CopyTables, MeshCompany
from dsinfer_jax.mesh.exchange import exchange_for
from dsinfer_jax.mesh.expert_placement import Placement, PlaceSizes, first_placement
from dsinfer_jax.mesh.expert_weights import in_places, move_program
from dsinfer_jax.mesh.hosts import Hosts
from dsinfer_jax.mesh.layout import check_layout
from dsinfer_jax.mesh.shardings import along, device_mesh, partition, placed, put
from dsinfer_jax.model import cache as model_cache
from dsinfer_jax.model.cache import Cache
from dsinfer_jax.model.company import ALONE
from dsinfer_jax.model.numerics import Numerics
from dsinfer_jax.model.parameter_table import TensorSpec
from dsinfer_jax.model.params import Params, Quantised, build_tree

Array = jax.Array
Tree = TypeVar("Tree")
PHASE = "prefill"  # its rules are those of decode too, where no context axis is used


class Devices(Protocol):
    """The interface.

    Attributes:
        extra: what a compiled step takes behind its other arguments.
    """

    extra: tuple[Any, ...]

    def params(self, params: Params) -> Params:
        """Weights where they belong."""

    def load(self, weights: StoredWeights) -> Params:
        """Weights read to where they belong."""

    def empty_cache(self) -> Cache:
        """A cache of zeros."""

    def abstract_cache(self) -> Cache:
        """Its shapes and where it lies."""

    def by_rank(self, leaves: Any) -> Any:
        """A host tree whose leaves have the entries of all ranks first, on the devices."""

    def everywhere(self, tree: Tree) -> Tree:
        """A host tree, whole on every device."""

    def stacked(self, vectors: Sequence[np.ndarray]) -> Array:
        """One vector for each rank, on the devices."""

    def host(self, array: Array) -> np.ndarray:
        """An array of the devices, whole on the host."""

    def program(self, step: Step, tile_rows: int) -> Callable[..., Any]:
        """A step as a function of the arrays of all ranks, to be compiled."""

    def mover(self, params: Params) -> ExpertMover | None:
        """What moves experts of these weights while serving, where that is wanted."""

    def read(self, packed: Array, packing: Packing, rows: int) -> Outcome:
        """The outcome of a step that samples `rows` rows in each rank (numpy)."""

    def check(self, program: str, parts: Iterable[tuple[str, np.ndarray]]) -> None:
        """Before a step: do all processes give it the same? See `Hosts.check_step`."""

    def waiting(self) -> AbstractContextManager[None]:
        """What is done inside may wait for other processes, but not for ever."""


class OneDevice:
    """Everything on jax's default device, or where the weights are."""

    extra = ()

    def __init__(self, config: ModelConfig, sizes: EngineConfig, numerics: Numerics) -> None:
        self._config, self._sizes, self._numerics = config, sizes, numerics

    def params(self, params: Params) -> Params:
        return params

    def load(self, weights: StoredWeights) -> Params:
        return weights.load(None)

    def empty_cache(self) -> Cache:
        return model_cache.init(self._config, self._sizes.cache_sizes, self._numerics)

    def abstract_cache(self) -> Cache:
        return model_cache.abstract(self._config, self._sizes.cache_sizes, self._numerics)

    def by_rank(self, leaves: Any) -> Any:
        return jax.device_put(leaves)

    def everywhere(self, tree: Tree) -> Tree:
        return jax.device_put(tree)

    def host(self, array: Array) -> np.ndarray:
        return np.asarray(array)

    def stacked(self, vectors: Sequence[np.ndarray]) -> Array:
        return jax.device_put(vectors[0])

    def program(self, step: Step, tile_rows: int) -> Callable[..., Any]:
        def whole(
            params: Params, cache: Cache, state: EngineState, packed: Array, masks: Array
        ) -> tuple[Cache, EngineState, Array]:
            return step(params, cache, state, packed, masks, ALONE)

        return whole

    def mover(self, params: Params) -> None:
        """One device has nothing to balance."""

    def read(self, packed: Array, packing: Packing, rows: int) -> Outcome:
        return packing.unpack_host(np.asarray(packed))

    def check(self, program: str, parts: Iterable[tuple[str, np.ndarray]]) -> None:
        """There is one process."""

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()


class MeshDevices:
    """The devices of a layout.

    Args:
        hosts: the processes whose devices these are; None: this one alone.
        chips: the devices; None: the first that there are.
    """

    def __init__(
        self,
        config: ModelConfig,
        sizes: EngineConfig,
        numerics: Numerics,
        hosts: Hosts | None = None,
        chips: Sequence[jax.Device] | None = None,
    ) -> None:
        self._config, self._sizes, self._numerics = config, sizes, numerics
        self._hosts = hosts
        self._last_outcome: np.ndarray = np.zeros(0, np.int32)
        self.mesh = device_mesh(sizes.layout, chips)
        self._exchange = exchange_for(sizes.exchange, self.mesh.devices.flat[0].platform)
        group = sizes.layout.expert_parallel
        counts = [config.n_routed_experts, *([config.draft.experts] if config.draft else [])]
        layers = [config.num_hidden_layers, *([config.draft.layers] if config.draft else [])]
        self.placements: list[Placement] = [
            first_placement(PlaceSizes.of(count, sizes.redundant_experts * group, group), depth)
            for count, depth in zip(counts, layers)
        ]
        self._ranks = along("sequences", PHASE)
        self.extra: tuple[Any, ...] = (self._tables(),)

    def params(self, params: Params) -> Params:
        return jax.tree.map(put, self._in_places(params), self.weight_formats())

    def load(self, weights: StoredWeights) -> Params:
        return weights.load(self._leaf_places())

    def weight_formats(self) -> Any:
        """Where and how each leaf of the weights lies: a `Sharding` or a `Format`."""
        places = self._leaf_places()
        return build_tree(self._config, lambda spec: places(spec).format)

    def _leaf_places(self) -> Callable[[TensorSpec], LeafPlace]:
        return leaf_places(self.mesh, self.placements, PHASE)

    def empty_cache(self) -> Cache:
        return jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding),
            self.abstract_cache(),
        )

    def abstract_cache(self) -> Cache:
        whole = model_cache.abstract(self._config, self._sizes.whole_cache_sizes, self._numerics)
        return jax.tree.map(
            lambda leaf, spec: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=NamedSharding(self.mesh, spec)
            ),
            whole, self._cache_specs(whole),
        )  # fmt: skip

    def by_rank(self, leaves: Any) -> Any:
        # a compiled step says of an empty leaf that it is whole, and would refuse a divided one
        specs = jax.tree.map(lambda leaf: P(self._ranks) if leaf.size else P(), leaves)
        return placed(leaves, self.mesh, specs)

    def stacked(self, vectors: Sequence[np.ndarray]) -> Array:
        return placed(np.stack(vectors), self.mesh, P(self._ranks))

    def everywhere(self, tree: Tree) -> Tree:
        return placed(tree, self.mesh, P())

    def host(self, array: Array) -> np.ndarray:
        return np.asarray(jax.device_put(array, NamedSharding(self.mesh, P())))

    def program(self, step: Step, tile_rows: int) -> Callable[..., Any]:
        places = [one.sizes.per_rank for one in self.placements]

        def local(
            params: Params, cache: Cache, state: EngineState, packed: Array, masks: Array,
            tables: CopyTables,
        ) -> tuple[Cache, EngineState, Array]:  # fmt: skip
            company = MeshCompany(self._exchange, tables, (places[0], places[-1]), tile_rows)
            cache, state, outcome = step(params, cache, state, packed[0], masks, company)
            outcome = outcome[None]
            if self._hosts is not None:  # every process reads the outcomes of all ranks
                outcome = lax.all_gather(outcome, self._ranks, tiled=True)
            return cache, state, outcome

        def whole(
            params: Params, cache: Cache, state: EngineState, packed: Array, masks: Array,
            tables: CopyTables,
        ) -> tuple[Cache, EngineState, Array]:  # fmt: skip
            weights = build_tree(self._config, lambda spec: partition(spec.stacked_axes, PHASE))
            keys, ranks = self._cache_specs(cache), P(self._ranks)
            read = ranks if self._hosts is None else P()
            return jax.shard_map(
                local, mesh=self.mesh, in_specs=(weights, keys, ranks, ranks, ranks, P()),
                out_specs=(keys, ranks, read), check_vma=False,
            )(params, cache, state, packed, masks, tables)  # fmt: skip

        return whole

    def mover(self, params: Params) -> ExpertMover | None:
        if self._sizes.balance is None:
            return None
        move = move_program(params.experts, self.mesh)
        return ExpertMover(self.placements[0], self._sizes.balance, move, self._place)

    def _place(self, backbone: Placement) -> None:
        self.placements[0] = backbone
        self.extra = (self._tables(),)

    def read(self, packed: Array, packing: Packing, rows: int) -> Outcome:
        with self.waiting():
            self._last_outcome = np.asarray(packed)
        outcomes = [packing.unpack_host(vector) for vector in self._last_outcome]
        outcomes = [
            replace(one, first_rows=one.first_rows + rank * rows)
            for rank, one in enumerate(outcomes)
        ]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *outcomes)

    def check(self, program: str, parts: Iterable[tuple[str, np.ndarray]]) -> None:
        if self._hosts is not None:
            last = "the outcome of the step before", self._last_outcome
            self._hosts.check_step(program, chain([last], parts))

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self._hosts is None else self._hosts.waiting("a step")

    def _tables(self) -> CopyTables:
        tables = [jnp.asarray(one.copy_table) for one in self.placements]
        draft = tables[1] if len(tables) > 1 else None
        return placed(CopyTables(tables[0], draft), self.mesh, P())

    def _in_places(self, params: Params) -> Params:
        """Experts in their places, and n-gram tables with rows that nobody asks for, so that all
        devices hold as many."""
        engrams = tuple(
            replace(one, embed=Quantised(*map(self._padded, (one.embed.weight, one.embed.scale))))
            for one in params.engrams
        )
        backbone = in_places(params.experts, self.placements[0].expert_at)
        params = replace(params, experts=backbone, engrams=engrams)
        if params.draft is None:
            return params
        draft = in_places(params.draft.experts, self.placements[1].expert_at)
        return replace(params, draft=replace(params.draft, experts=draft))

    def _padded(self, leaf: Array) -> Array:
        return jnp.pad(leaf, ((0, -leaf.shape[0] % self.mesh.size), (0, 0)))

    def _cache_specs(self, cache: Any) -> Any:
        """Slots and blocks are those of the ranks, one after the other."""
        specs = jax.tree.map(lambda _: P(None, self._ranks), cache)
        return replace(specs, recent_tokens=P(self._ranks))


def make_devices(
    config: ModelConfig, sizes: EngineConfig, numerics: Numerics, hosts: Hosts | None = None
) -> Devices:
    """The devices that the sizes name; with several processes, those of all of them.

    Raises:
        LayoutError: the layout leaves devices out, whose process would have nothing to do.
        HostsError: the processes want different engines.
    """
    if hosts is not None:
        hosts.agree("the start", _engine_facts(config, sizes, numerics))
        check_layout(sizes.layout, config, "prefill", jax.device_count())
    if sizes.layout.devices == 1:
        return OneDevice(config, sizes, numerics)
    return MeshDevices(config, sizes, numerics, hosts=hosts)


def _engine_facts(config: ModelConfig, sizes: EngineConfig, numerics: Numerics) -> dict[str, str]:
    """What all processes must want alike, by name."""
    return {"the version of jax": jax.__version__} | {
        field.name: str(getattr(group, field.name))
        for group in (sizes, numerics, config)
        for field in fields(group)
    }
