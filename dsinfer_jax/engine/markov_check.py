"""The start-up check of the draft block's two Markov tables.

Both have one shape, so a checkpoint with the two exchanged loads, answers are right, and only
drafts stay less often (speculative.md 4). A few answers are drawn with the tables as they are and
again with the tables exchanged: if drafts then stay more often, far beyond chance, they were wrong
before. Tables that were never trained do neither better nor worse.
"""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.model.params import Params

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm_engine import LLMEngine

_REQUESTS = 8
_TOKENS = 24  # of each answer
_SIGMAS = 4  # of the difference of the two counts
_RATIO = 1.2


def check_markov_tables(engine: "LLMEngine", params: Params) -> None:
    """Warn if drafts stay more often with the Markov tables exchanged.

    Args:
        engine: without requests, with a drafter that reads the tables.
        params: its weights.
    """
    assert params.draft is not None
    draft = params.draft
    exchanged = replace(draft, markov_embed=draft.markov_head, markov_head=draft.markov_embed)
    kept = _accepted_drafts(engine)
    with engine.other_params(replace(params, draft=exchanged)):
        kept_exchanged = _accepted_drafts(engine)
    if looks_exchanged(kept, kept_exchanged):
        warnings.warn(
            f"of the drafts in {_REQUESTS} answers {kept} stayed, and {kept_exchanged} with the "
            "draft block's tables markov_head.embed and markov_head.head exchanged; they seem to "
            "be swapped in the checkpoint: answers are right, drafting is slower than it could be",
            RuntimeWarning,
            stacklevel=2,
        )


def looks_exchanged(kept: int, kept_exchanged: int) -> bool:
    """Whether the second count is larger beyond chance, and by enough to matter."""
    difference = kept_exchanged - kept
    chance = _SIGMAS * (kept + kept_exchanged) ** 0.5
    return difference > chance and kept_exchanged > _RATIO * kept


def _accepted_drafts(engine: "LLMEngine") -> int:
    tokens = min(_TOKENS, engine.sizes.max_model_len)
    requests = [
        Request(
            seed,
            [engine.config.bos_token_id],
            SamplingParams(max_tokens=tokens, seed=seed, ignore_eos=True),
        )
        for seed in range(_REQUESTS)
    ]
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished_requests():
        engine.step()
    engine.flush()
    return sum(request.accepted_tokens for request in requests)
