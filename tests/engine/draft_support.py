"""A small model with a draft block, and its engines over shared programs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from model_support import FEW_LAYERS

from dsinfer_jax import config
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.programs import Programs
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.model import init
from dsinfer_jax.model.numerics import EXACT
from dsinfer_jax.model.params import Params

DRAFT: dict[str, Any] = {
    **FEW_LAYERS,
    "compress_ratios": [*FEW_LAYERS["compress_ratios"], 0, 0],
    "num_nextn_predict_layers": 2,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [4, 5],
    "dspark_noise_token_id": 13,
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}
PLACES = 4


def requests(count: int, temperature: float, max_tokens: int, **params: Any) -> list[Request]:
    """Prompts of growing length, each with a seed of its own."""
    dice = np.random.default_rng(1)
    return [
        Request(
            place,
            dice.integers(3, 512, 20 + 17 * place).tolist(),
            SamplingParams(
                max_tokens=max_tokens, temperature=temperature, seed=place, ignore_eos=True,
                **params,
            ),
        )
        for place in range(count)
    ]  # fmt: skip


class Drafted:
    """A model with a draft block, its programs without and with drafts.

    The programs with drafts are those of variable lengths; fixed lengths use the largest of them.
    """

    def __init__(self) -> None:
        self.config: ModelConfig = config.tiny(**DRAFT)
        self.params: Params = init.init(self.config, seed=5)
        self._programs: dict[str, Programs] = {}

    def sizes(self, drafter: str, **changes: Any) -> EngineConfig:
        lengths = "fixed" if drafter == "off" else "variable"
        sizes = EngineConfig.of(
            self.config, max_model_len=300, prefill_rows=(64,), drafter=drafter,
            draft_tokens=PLACES, draft_lengths=lengths, decode_rows=(16,),
        )  # fmt: skip
        return replace(sizes, **changes)

    def engine(
        self, drafter: str, params: Params | None = None, costs: Any = None, **changes: Any
    ) -> LLMEngine:
        if drafter not in self._programs:
            self._programs[drafter] = Programs(self.params, self.config, EXACT, self.sizes(drafter))
        sizes = self.sizes(drafter, **{"draft_lengths": "fixed", **changes})
        return LLMEngine(
            self.config, params or self.params, EXACT, sizes,
            programs=self._programs[drafter], costs=costs,
        )  # fmt: skip

    def successors(self, sharpness: float, markov: float) -> Params:
        """Weights of a target in which token t + 1 follows t, and of a draft that knows it.

        Embeddings are so large that layers hardly change them. The draft knows it by its Markov
        tables alone, but at the first place.

        Args:
            sharpness: logit of the successor; others are near 0.
            markov: what the tables add to it.
        """
        dice = np.random.default_rng(2)
        vocab, hidden = self.config.vocab_size, self.config.hidden_size
        embed, tables = (_unit(dice.standard_normal((vocab, width))) for width in (hidden, 32))
        before = np.roll(np.arange(vocab), 1)  # of token v: v - 1
        params, draft = self.params, self.params.draft
        assert draft is not None
        head = embed[before] * sharpness / hidden**0.5
        return replace(
            params,
            embed=jnp.asarray(embed * 1e3, params.embed.dtype),
            norm=jnp.ones_like(params.norm),
            head=jnp.asarray(head, params.head.dtype),
            draft=replace(
                draft,
                norm=jnp.ones_like(draft.norm),
                markov_embed=jnp.asarray(tables, draft.markov_embed.dtype),
                markov_head=jnp.asarray(tables[before] * markov, draft.markov_head.dtype),
            ),
        )

    def favouring(self, tokens: Sequence[int], strength: float) -> Params:
        """Weights whose draft adds so much to the logits of these tokens, at every place."""
        draft = self.params.draft
        assert draft is not None
        return replace(
            self.params,
            draft=replace(
                draft,
                markov_embed=draft.markov_embed.at[:, 0].set(1.0),
                markov_head=draft.markov_head.at[np.asarray(tokens), 0].add(strength),
            ),
        )


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
