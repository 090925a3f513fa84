"""An engine's arrays on devices that are not there: shapes and shardings instead of values."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dsinfer_jax.engine.devices import MeshDevices
from dsinfer_jax.mesh.company import CopyTables
from dsinfer_jax.model.params import Params


class TopologyDevices(MeshDevices):
    """What programs are compiled for; nothing can run."""

    def params(self, params: Params) -> Params:
        shapes = jax.eval_shape(self._in_places, params)
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
            shapes, self.weight_formats(),
        )  # fmt: skip

    def by_rank(self, leaves: Any) -> Any:
        return jax.tree.map(lambda leaf: self._abstract(leaf, P(self._ranks)), leaves)

    def stacked(self, vectors: Sequence[np.ndarray]) -> Any:
        return self.by_rank(np.stack(vectors))

    def _tables(self) -> CopyTables:
        tables = [self._abstract(one.copy_table, P()) for one in self.placements]
        return CopyTables(tables[0], tables[1] if len(tables) > 1 else None)  # type: ignore[arg-type]

    def _abstract(self, leaf: Any, spec: P) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(self.mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
