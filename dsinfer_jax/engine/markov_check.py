"""The start-up check of the draft block's two Markov tables.

Both have one shape, so a checkpoint with the two exchanged loads, answers are right, and only
drafts stay less often, most at later places (speculative.md 4). A few short answers are drawn; then
the laws that the block proposed on the way are asked how likely they find the tokens that came,
each after the token that came before it: with the tables as they are, exchanged, and without.
Trained tables that are exchanged spoil the law and mend it when they are exchanged again; tables
that were never trained do no better than none either way.
"""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.model.params import DraftParams, Params

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm_engine import LLMEngine

Array = jax.Array

_REQUESTS = 8
_TOKENS = 16  # of each answer
_SIGMAS = 4  # by which the exchanged tables must be better
_LEAST = 0.02  # and by so much, in nats for each token


@dataclass(frozen=True)
class _Proposed:
    """The laws that a step left for one slot."""

    request: Request
    start: int  # position of its newest token then
    drafts: np.ndarray  # [places] int32
    logits: np.ndarray  # [places, vocab] bf16


def check_markov_tables(engine: "LLMEngine", params: Params) -> None:
    """Warn if drafts would fit better with the Markov tables exchanged.

    Args:
        engine: without requests, with the drafter that reads the tables.
        params: its weights.
    """
    assert params.draft is not None
    given, exchanged, without = _likelihoods(_proposals(engine), params.draft)
    if looks_exchanged(exchanged - given) and looks_exchanged(exchanged - without):
        warnings.warn(
            "the draft block would fit this model better with its tables markov_head.embed and "
            f"markov_head.head exchanged (by {(exchanged - given).mean():.2f} nats for each "
            "token); they seem to be swapped in the checkpoint: answers are right, drafting is "
            "slower than it could be",
            RuntimeWarning,
            stacklevel=2,
        )


def looks_exchanged(gains: np.ndarray) -> bool:
    """Whether gains in log-likelihood [n] are positive beyond chance, and enough to matter."""
    if len(gains) < 2:
        return False
    chance = _SIGMAS * gains.std(ddof=1) / len(gains) ** 0.5
    return bool(gains.mean() > max(chance, _LEAST))


def _proposals(engine: "LLMEngine") -> list[_Proposed]:
    """Draw the answers, and keep what was proposed after each step."""
    tokens = min(_TOKENS, engine.sizes.max_model_len)
    requests = [
        Request(
            seed,
            [engine.config.bos_token_id],
            SamplingParams(max_tokens=tokens, seed=seed, ignore_eos=True),
        )
        for seed in range(min(_REQUESTS, engine.sizes.slots))
    ]
    for request in requests:
        engine.add_request(request)
    found = []
    while engine.has_unfinished_requests():
        engine.step()
        running = [one for one in requests if one.slot is not None]
        starts, drafts, laws = engine.proposals(running)
        found += list(map(_Proposed, running, starts.tolist(), drafts, laws))
    engine.flush()
    return found


def _likelihoods(proposed: list[_Proposed], draft: DraftParams) -> np.ndarray:
    """Log-likelihoods of the tokens that came: [3, n], with the tables as given, exchanged, not."""
    logits, own, before, came = [], [], [], []
    for one in proposed:
        text = one.request.known_tokens(0, one.request.length)
        known = len(text) - one.start - 1  # places whose token came
        for place in range(1, min(len(one.drafts), known)):  # at the first one tables matter least
            logits.append(one.logits[place])
            own.append(one.drafts[place - 1])
            before.append(text[one.start + place])
            came.append(text[one.start + place + 1])
    if not logits:
        return np.zeros((3, 0))
    parts = []
    for first in range(0, len(logits), _ROWS):  # of one size: one program
        rows = np.resize(np.arange(first, min(first + _ROWS, len(logits))), _ROWS)
        some = np.stack([logits[row] for row in rows])
        tokens = (np.array(ids, np.int32)[rows] for ids in (own, before, came))
        part = np.asarray(_score(some, *tokens, draft.markov_embed, draft.markov_head))
        parts.append(part[:, : len(logits) - first])
    return np.concatenate(parts, axis=1)


_ROWS = 32


@jax.jit
def _score(
    logits: Array, own: Array, before: Array, came: Array, embed: Array, head: Array
) -> Array:
    def markov(rows: Array, columns: Array, tokens: Array) -> Array:
        return jnp.matmul(rows[tokens], columns.T, preferred_element_type=jnp.float32)

    def likelihood(logits: Array) -> Array:
        law = jax.nn.log_softmax(logits, axis=-1)
        return jnp.take_along_axis(law, came[:, None], axis=-1)[:, 0]

    base = logits.astype(jnp.float32) - markov(embed, head, own)
    given, exchanged = markov(embed, head, before), markov(head, embed, before)
    return jnp.stack([likelihood(base + given), likelihood(base + exchanged), likelihood(base)])
