"""Moves between steps: every table that programs see names places that hold the expert."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dsinfer_jax.config import tiny
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.expert_mover import ExpertMover
from dsinfer_jax.mesh.expert_balance import BalanceSettings
from dsinfer_jax.mesh.expert_placement import Placement, PlaceSizes, first_placement
from dsinfer_jax.mesh.layout import MeshLayout

LAYERS, EXPERTS, RANKS = 3, 8, 4


@dataclass(frozen=True)
class FakeParams:
    experts: np.ndarray


class Devices:
    """Weights are the numbers of their experts."""

    def __init__(self, sizes: PlaceSizes) -> None:
        self.placement = first_placement(sizes, LAYERS)
        self.weights = self.placement.expert_at.copy()
        self.moved: list[int] = []

    def move(self, experts: Any, layer: Any, source: np.ndarray) -> Any:
        self.moved.append(int(layer))
        experts = experts.copy()
        experts[layer] = experts[layer, source]
        return experts

    def place(self, placement: Placement) -> None:
        self.placement = placement


def skewed(random: np.random.Generator) -> np.ndarray:
    return random.zipf(1.3, (LAYERS, EXPERTS)).clip(max=10_000)


def test_every_step_finds_the_experts_that_its_table_names() -> None:
    settings = BalanceSettings(redundant_per_rank=2, window=1, interval=2)
    devices = Devices(PlaceSizes.of(EXPERTS, 2 * RANKS, RANKS))
    mover = ExpertMover(devices.placement, settings, devices.move, devices.place)
    params: Any = FakeParams(devices.weights)
    random = np.random.default_rng(0)
    for _ in range(60):
        before = len(devices.moved)
        params = mover.advance(params)
        assert len(devices.moved) - before <= 1
        np.testing.assert_array_equal(params.experts, devices.placement.expert_at)
        devices.placement.check()
        mover.record(skewed(random))
    assert set(devices.moved) == set(range(LAYERS))
    counts = mover.entries()
    assert counts["dsinfer_expert_rearrangements_total"] > 5
    assert counts["dsinfer_expert_places_filled_total"] > 5
    assert counts["dsinfer_moe_lb"] >= 1


def test_moves_follow_a_load_that_stays() -> None:
    settings = BalanceSettings(redundant_per_rank=2, window=4, interval=8)
    devices = Devices(PlaceSizes.of(EXPERTS, 2 * RANKS, RANKS))
    mover = ExpertMover(devices.placement, settings, devices.move, devices.place)
    params: Any = FakeParams(devices.weights)
    loads = np.tile([100, 40, 1, 1, 1, 1, 1, 1], (LAYERS, 1))
    mover.record(loads)
    first = mover.balance
    for _ in range(40):
        params = mover.advance(params)
        mover.record(loads)
    assert mover.balance < 0.8 * first


def test_one_device_has_nothing_to_balance() -> None:
    config = tiny()
    for name in ("redundant_experts", "rebalance_steps"):
        with pytest.raises(ValueError, match=f"{name} is 3, but one device has all experts"):
            EngineConfig.of(config, **{name: 3})
    sizes = EngineConfig.of(config, layout=MeshLayout.of(2, 2, 1), rebalance_steps=50)
    assert sizes.balance == BalanceSettings(0, window=50, interval=50)
