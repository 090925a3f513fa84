"""Keeping experts balanced while serving: when what is rearranged (engine.md 7.4, 7.5).

`ExpertBalancer` watches the loads of the executed steps. Every interval it places the experts anew,
which moves weights. Every window in between it gives the copies of hot experts new shares, which
moves nothing and follows the drift of the traffic: the published engine has no such step.

Every process records the same counts and so decides the same. Nothing here touches a device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dsinfer_jax.mesh.expert_loads import Counts, LoadStatistics
from dsinfer_jax.mesh.expert_moves import Moves, aligned, moves_between
from dsinfer_jax.mesh.expert_placement import Placement, PlaceSizes, first_placement
from dsinfer_jax.mesh.expert_policy import balanced_placement, tuned

LINK_SLACK = 0.002  # of moe_lb: what a placement whose shares can follow drift may cost at first


@dataclass(frozen=True)
class BalanceSettings:
    """When to rearrange, and how much room there is.

    Attributes:
        redundant_per_rank: places on each rank beyond those that every expert needs once.
        window: steps whose loads decide.
        interval: steps between rearrangements; the first comes after a quarter of it.
        tune: whether shares follow the loads, every `window` steps between rearrangements.
    """

    redundant_per_rank: int
    window: int
    interval: int
    tune: bool = True

    def __post_init__(self) -> None:
        if self.redundant_per_rank < 0:
            raise ValueError(
                f"redundant_per_rank is {self.redundant_per_rank}; it must be 0 or more"
            )
        if not 0 < self.window <= self.interval:
            raise ValueError(
                f"window is {self.window} and interval {self.interval}; they must be "
                "0 < window <= interval"
            )


PREFILL = BalanceSettings(redundant_per_rank=4, window=100, interval=1000)
DECODE = BalanceSettings(redundant_per_rank=1, window=1000, interval=10000)


@dataclass(frozen=True)
class Rearrangement:
    """A new placement, and how to get there: `moves` is None when only shares change."""

    placement: Placement
    moves: Moves | None


class ExpertBalancer:
    """Decides from the loads of every step when experts are placed anew, and where."""

    def __init__(
        self,
        layers: int,
        experts: int,
        ranks: int,
        settings: BalanceSettings,
        policy: Callable[[Counts, PlaceSizes], Placement] | None = None,
    ) -> None:
        """`policy` places experts; None: `balanced_placement`, linked where shares are tuned."""
        sizes = PlaceSizes.of(experts, settings.redundant_per_rank * ranks, ranks)
        self.settings = settings
        self.placement = first_placement(sizes, layers)
        slack = LINK_SLACK if settings.tune else 0.0
        self._policy = policy or partial(balanced_placement, slack=slack)
        self._statistics = LoadStatistics(layers, experts, settings.window)
        self._steps = 0
        self._first = max(1, settings.interval // 4)

    def window_loads(self) -> Counts:
        """[steps, layers, experts] of the steps in the window."""
        return self._statistics.loads()

    def record(self, counts: Counts) -> Rearrangement | None:
        """Add a step's tokens [layers, experts]; what is to change before the next step, if any.

        The new placement counts from then on: the caller moves the weights and hands the maps to
        the programs together.
        """
        if self.placement.sizes.ranks == 1:
            return None
        self._statistics.record(counts)
        self._steps += 1
        since = self._steps - self._first
        if since >= 0 and since % self.settings.interval == 0:
            placement = self._policy(self._statistics.loads(), self.placement.sizes)
            placement = aligned(placement, self.placement)
            change = Rearrangement(placement, moves_between(self.placement, placement))
        elif since > 0 and self.settings.tune and since % self.settings.window == 0:
            change = Rearrangement(tuned(self.placement, self._statistics.loads()), None)
        else:
            return None
        self.placement = change.placement
        return change
