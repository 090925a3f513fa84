"""Weights in a folder, and where they go on a mesh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax.experimental.layout import Layout
from jax.sharding import Mesh, NamedSharding

from dsinfer_jax.checkpoint import LeafPlace, PlaceRule, load_native, load_pretrained
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.mesh.expert_placement import Placement
from dsinfer_jax.mesh.shardings import partition
from dsinfer_jax.model.parameter_table import TensorSpec
from dsinfer_jax.model.params import Params

# Platforms that multiply by float8 and float4 matrices whose outputs lie next to each other; others
# read them as checkpoints have them. In the wrong order a matrix is copied in every step.
OUTPUTS_FASTEST = {"tpu"}


@dataclass(frozen=True)
class StoredWeights:
    """A checkpoint that is not read yet: an engine loads it straight to where its weights belong.

    Attributes:
        folder: in the Hugging Face layout.
        config: of the model.
        native: folder of a native checkpoint, which is written if it does not exist; None: none.
    """

    folder: Path
    config: ModelConfig
    native: Path | None = None

    def load(self, place: PlaceRule | None) -> Params:
        """The weights in their places. Raises CheckpointError if a folder cannot be used."""
        if self.native is None:
            return load_pretrained(self.folder, config=self.config, place=place)[1]
        return load_native(self.native, self.folder, config=self.config, place=place)[1]


def leaf_places(
    mesh: Mesh, placements: Sequence[Placement], phase: str
) -> Callable[[TensorSpec], LeafPlace]:
    """Where each leaf lies on a mesh: experts in their places, tables of n-grams with rows that
    nobody asks for, so that all devices hold as many.

    Args:
        placements: of the backbone's experts, and of the draft block's if there is one.
    """

    def place(spec: TensorSpec) -> LeafPlace:
        sharding = NamedSharding(mesh, partition(spec.stacked_axes, phase))
        layout = memory_layout(spec, mesh.devices.flat[0].platform)
        if spec.experts is not None:
            placement = placements[-1 if spec.path[0] == "draft" else 0]
            return LeafPlace(sharding, expert_at=placement.expert_at, layout=layout)
        if "engram_rows" in spec.axes:
            rows = spec.shape[0]
            return LeafPlace(sharding, rows=rows + -rows % mesh.size)
        return LeafPlace(sharding, layout=layout)

    return place


def memory_layout(spec: TensorSpec, platform: str) -> Layout | None:
    """The order of a leaf's dimensions in memory that programs of a platform read without a copy;
    None: the last one fastest."""
    if platform not in OUTPUTS_FASTEST or not spec.is_of_quantised_matrix:
        return None
    *outer, outputs, inputs = range(len(spec.stacked_shape))
    return Layout((*outer, inputs, outputs))
