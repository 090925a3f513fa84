"""Experts that move while an engine serves (engine.md 7.4 to 7.7).

The balancer decides from the loads of executed steps; between two steps at most one layer of
weights moves. Weights and copy tables are handed to the devices together, in the order of the
steps, so every step computes with places that hold what its table says, and answers do not change.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinfer_jax.mesh.expert_balance import BalanceSettings, ExpertBalancer, Rearrangement
from dsinfer_jax.mesh.expert_loads import Counts, moe_lb, rank_loads
from dsinfer_jax.mesh.expert_placement import Integers, Placement
from dsinfer_jax.model.params import Params

_PREFIX = "dsinfer_"


class ExpertMover:
    """Keeps the backbone's experts balanced.

    Args:
        placement: of the first steps.
        move: (experts, layer, source) -> experts, compiled; experts are given away.
        place: told every new placement of the programs.
    """

    def __init__(
        self,
        placement: Placement,
        settings: BalanceSettings,
        move: Callable[[Any, Any, Any], Any],
        place: Callable[[Placement], None],
    ) -> None:
        sizes = placement.sizes
        self._placement, self._move, self._place = placement, move, place
        self._balancer = ExpertBalancer(placement.layers, sizes.experts, sizes.ranks, settings)
        self._waiting: deque[tuple[int, Integers]] = deque()  # layers, and their new sources
        self._rearrangements = self._moved = 0

    def record(self, loads: Counts) -> None:
        """Add a step's rows by expert [layers, experts]; may decide to rearrange.

        While layers wait to be moved, steps are not counted.
        """
        if self._waiting:
            return
        change = self._balancer.record(loads)
        if change is not None:
            self._begin(change)

    def advance(self, params: Params) -> Params:
        """The weights for the next step: one layer has moved, if one waits.

        What is passed is given away.
        """
        if not self._waiting:
            return params
        layer, source = self._waiting.popleft()
        experts = self._move(params.experts, np.int32(layer), source)
        self._moved += int((source != np.arange(len(source))).sum())
        self._use([layer])
        return replace(params, experts=experts)

    def entries(self) -> dict[str, float]:
        """Counts by their Prometheus names (docs/engine.md)."""
        return {
            f"{_PREFIX}moe_lb": self.balance,
            f"{_PREFIX}expert_rearrangements_total": self._rearrangements,
            f"{_PREFIX}expert_places_filled_total": self._moved,
        }

    @property
    def balance(self) -> float:
        """moe_lb of the steps in the window with the present placement (engine.md 7.7)."""
        return moe_lb(rank_loads(self._balancer.window_loads(), self._placement))

    def _begin(self, change: Rearrangement) -> None:
        self._rearrangements += change.moves is not None
        layers = range(self._placement.layers)
        if change.moves is None:
            self._use(layers)
            return
        stays = np.arange(self._placement.sizes.places)
        moving = [layer for layer in layers if (change.moves.source[layer] != stays).any()]
        self._use([layer for layer in layers if layer not in moving])  # their shares change at most
        self._waiting.extend((layer, change.moves.source[layer]) for layer in moving)

    def _use(self, layers: Sequence[int]) -> None:
        """Let the programs see the balancer's placement of some layers."""
        new, some = self._balancer.placement, list(layers)
        expert_at, copy_table = (
            leaf.copy() for leaf in (self._placement.expert_at, self._placement.copy_table)
        )
        expert_at[some], copy_table[some] = new.expert_at[some], new.copy_table[some]
        self._placement = replace(self._placement, expert_at=expert_at, copy_table=copy_table)
        self._place(self._placement)
