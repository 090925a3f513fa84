"""The learned drafter: the draft block of the checkpoint (speculative.md 2, 3).

Its main keys are written by the target's own forward pass; a block runs right after the tokens of a
step are drawn, also after the last slice of a prompt. At temperature 0 it proposes the largest
logit; where draws are coupled (design.md 6) the token that its own law gives with the noise of that
position, which the target will use too; else a draw from its law, with the request's temperature
and filters. That law is kept for the next step as bf16 logits, and drawn from as it is kept.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.drafter import Drafts, Model, Written
from dsinfer_jax.engine.random import Purpose
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampler import choose
from dsinfer_jax.engine.verification import KEPT_DTYPE, proposal_counters
from dsinfer_jax.model.draft import draft_block
from dsinfer_jax.model.numerics import Numerics

Array = jax.Array


class DSparkDrafter:
    """Proposes the first `places` tokens of a draft block.

    Args:
        temperatures: of the confidences, one for each place (speculative.md 10).

    Raises:
        ValueError: the model has no draft block, or a shorter one.
    """

    draws = True

    def __init__(
        self, places: int, config: ModelConfig, numerics: Numerics, temperatures: Sequence[float]
    ) -> None:
        if config.draft is None:
            raise ValueError(
                "drafter is 'dspark', but the model has no draft block "
                "(num_nextn_predict_layers is 0); use 'lookup' or 'off'"
            )
        if places > config.draft.block_size:
            raise ValueError(
                f"draft_tokens is {places}; the model's draft block has {config.draft.block_size}"
            )
        self.places = places
        self._config, self._numerics = config, numerics
        unused = [1.0] * (config.draft.block_size - places)
        self._temperatures = np.array([*temperatures, *unused], np.float32)

    def empty(self, slots: int) -> Any:
        return None

    def entry(self, request: Request) -> Any:
        return None

    def note(self, state: Any, written: Written) -> Any:
        return state

    def propose(self, state: Any, written: Written, model: Model) -> tuple[Any, Drafts]:
        assert self._config.draft is not None
        last_computed = jnp.where(written.running, written.newest - 1, -1)

        def token(logits: Array, place: Array) -> Array:
            draws = replace(written.draws, positions=written.newest + 1 + place)
            words = Purpose.DRAFT, proposal_counters(written.newest, place)
            judged = (jnp.asarray(draws.temperature) > 0) & ~jnp.asarray(draws.coupled)
            logits = jnp.where(judged[:, None], _kept(logits), logits)
            return choose(logits, draws, words)[0]

        result = draft_block(
            model.params, model.cache, written.newest_ids, last_computed, token,
            jnp.asarray(self._temperatures), self._config, self._numerics,
            company=model.company,
        )  # fmt: skip
        counts = jnp.full(written.newest.shape, self.places, jnp.int32)
        tokens, laws, confidences = (
            by_place[:, : self.places]
            for by_place in (result.tokens, result.logits, result.confidences)
        )
        return state, Drafts(tokens, counts, laws.astype(KEPT_DTYPE), confidences)


def _kept(logits: Array) -> Array:
    """The logits as they will be when they are read again."""
    return logits.astype(KEPT_DTYPE).astype(jnp.float32)
