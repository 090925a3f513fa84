"""Where the computation of a prompt starts when its first blocks are in the cache (model.md 7.6).

Blocks hold compressed keys only. The window keys of the tokens before a hit are not stored; they
are rebuilt by computing some stored tokens once more, without storing them again. How many:

* `exact`: a layer's output is exact from `window - 1` rows after its input is, so after all layers
  that matter every row from the hit on has the bits of a run without a cache. All layers matter;
  with consumer truncation only the producer half does, from the kept suffix on.
* `bounded`: one block, with windows cut where it begins. Constant cost, approximate, and possible
  only where truncation bounds the consumer half anyway.
"""

from dataclasses import dataclass

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.model.plan import Truncation
from dsinfer_jax.settings import PREFIX_CACHES


@dataclass(frozen=True)
class Replay:
    """The rules of one engine.

    Attributes:
        mode: one of `settings.PREFIX_CACHES`.
        keep: suffix of a prompt that the consumer half computes; 0: all of it.
        reach: rows before a hit that `exact` computes again.
    """

    mode: str
    keep: int
    reach: int

    @classmethod
    def of(cls, mode: str, truncation: Truncation, config: ModelConfig) -> "Replay":
        """The rules for a model.

        Raises:
            ValueError: an unknown mode, or `bounded` without truncation.
        """
        if mode not in PREFIX_CACHES:
            raise ValueError(
                f"prefix_cache is {mode!r}; it must be one of {', '.join(PREFIX_CACHES)}"
            )
        truncated = truncation.mode != "off"
        if mode == "bounded" and not truncated:
            raise ValueError(
                "prefix_cache is 'bounded', but keep_tokens is 0; give keep_tokens (the consumer "
                "half has no stored windows), or use 'exact'"
            )
        layers = config.first_consumer_layer if truncated else config.num_hidden_layers
        return cls(mode, truncation.keep if truncated else 0, layers * (config.sliding_window - 1))

    def longest_hit(self, prompt_length: int, length: int) -> int:
        """Most tokens that may come from the cache; a multiple of the block size.

        Args:
            prompt_length: tokens of the prompt.
            length: all known tokens: more than the prompt's after a preemption.
        """
        if self.mode == "off":
            return 0
        # at least one row has to be computed; bounded replay also leaves the kept suffix whole
        most = prompt_length - self.keep if self.mode == "bounded" else length - 1
        return max(most, 0) // CACHE_BLOCK_TOKENS * CACHE_BLOCK_TOKENS

    def start(self, hit: int, prompt_length: int) -> int:
        """First token to compute when `hit` tokens are stored; 0 means that nothing is saved."""
        if hit == 0:
            return 0
        if self.mode == "bounded":
            return hit - CACHE_BLOCK_TOKENS
        exact_from = min(hit, prompt_length - self.keep) if self.keep else hit
        return max(exact_from - self.reach, 0)
