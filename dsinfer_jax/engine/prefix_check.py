"""The start-up check of the prefix cache: one prefix is stored and found again."""

from typing import TYPE_CHECKING

from dsinfer_jax.config import CACHE_BLOCK_TOKENS
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from dsinfer_jax.engine.llm_engine import LLMEngine


def describe(engine: "LLMEngine") -> str:
    """What the prefix cache of an engine does, in one line (its grain is a promise)."""
    replay = engine.sizes.replay
    if replay.mode == "off":
        return "prefix cache: off"
    again = replay.reach if replay.mode == "exact" else CACHE_BLOCK_TOKENS
    return (
        f"prefix cache: {replay.mode}, reuses whole blocks of {CACHE_BLOCK_TOKENS} tokens and "
        f"computes up to {again} tokens before the end of a hit again"
    )


def check_prefix_cache(engine: "LLMEngine") -> None:
    """Run the shortest prompt that can hit, twice.

    Raises:
        RuntimeError: the second run found nothing: prompts would be computed anew for ever.
    """
    replay, sizes = engine.sizes.replay, engine.sizes
    length = CACHE_BLOCK_TOKENS + (replay.keep if replay.mode == "bounded" else 1)
    if replay.mode == "off" or length > sizes.max_model_len:
        return
    tokens = [place % engine.config.vocab_size for place in range(length)]
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    for found in (0, CACHE_BLOCK_TOKENS):
        request = Request(0, tokens, params)
        engine.add_request(request)
        while engine.has_unfinished_requests():
            engine.step()
        if request.error is None and request.stored_tokens != found:
            raise RuntimeError(
                f"the prefix cache found {request.stored_tokens} tokens of a prompt of {length}, "
                f"not {found}; start with prefix_cache='off' and report it"
            )
