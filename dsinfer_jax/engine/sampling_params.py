"""How tokens of one request are chosen and when it ends, checked field by field.

This module imports the standard library only, so that a command line or a server can refuse a bad
request before it loads anything heavy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from dsinfer_jax.engine.structured_output import StructuredOutput

_LARGEST_COUNT = 2**31 - 1
# Sizes of arrays in every compiled program: more would cost every request.
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 300
MAX_STOP_TOKEN_IDS = 15  # and the end-of-sequence token
LARGEST_BIAS = 100.0


@dataclass(frozen=True)
class SamplingParams:
    """How tokens of one request are chosen and when it ends.

    The order of operations is that of the fields `logit_bias` to `top_k` (docs/sampling.md).

    Attributes:
        max_tokens: most tokens to generate, 1 or more.
        min_tokens: the end-of-sequence token, stop tokens and stop strings cannot end the request
            before it has so many tokens; at most max_tokens.
        n: answers to give to each prompt. Answer 0 draws with the seed, the others with seeds
            derived from it.
        logit_bias: added to the logits of tokens, -100 to 100, at most 300 entries.
        repetition_penalty: divides positive logits, and multiplies negative ones, of every token in
            the prompt or the output; above 0, 1 changes nothing.
        frequency_penalty: subtracted for each time the token is in the output; -2 to 2.
        presence_penalty: subtracted once if the token is in the output; -2 to 2.
        temperature: 0 takes the most likely token, lowest id among equals; the filters then do not
            matter. Larger values divide the logits.
        min_p: keep tokens at least so many times as likely as the most likely one, in [0, 1].
        top_p: keep the most likely tokens up to this mass, in (0, 1]; the token that crosses the
            limit is kept. 1 keeps all.
        top_k: keep so many of the most likely tokens, lowest id among equals. 0 and -1 keep all.
        seed: 64-bit number that fixes every draw, whatever else runs; prompts that share it share
            random numbers position by position. None draws a fresh one for each request.
        ignore_eos: go on after the end-of-sequence token.
        stop: texts that end the output; what is generated from there on is cut off.
        stop_token_ids: tokens that end the output as the end-of-sequence token does.
        draft_tokens: most proposed tokens that a step verifies for this request; 0 does without.
            None: as many as the engine has, which is also the most.
        structured_output: what the output must look like; not together with min_tokens or
            ignore_eos, because the grammar decides where an output ends.
        logprobs: return the logarithm of each chosen token's probability.
        top_logprobs: return so many of the most likely tokens with their logarithms, at most 20.
        filtered_logprobs: False: probabilities are of the raw law, softmax of the model's logits.
            True: of the law that the token was drawn from, after everything above.

    Raises:
        ValueError: one sentence with field, value and what is allowed.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    n: int = 1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    temperature: float = 1.0
    min_p: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    ignore_eos: bool = False
    stop: str | tuple[str, ...] | list[str] = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    draft_tokens: int | None = None
    structured_output: StructuredOutput | None = None
    logprobs: bool = True
    top_logprobs: int = 0
    filtered_logprobs: bool = False

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1, _LARGEST_COUNT)
        _whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        _whole("n", self.n, 1, _LARGEST_COUNT)
        self._check_law()
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**64 - 1)
        if self.draft_tokens is not None:
            _whole("draft_tokens", self.draft_tokens, 0, _LARGEST_COUNT)
        self._check_endings()
        _whole("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        for name in ("ignore_eos", "logprobs", "filtered_logprobs"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "True or False")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts of `stop`."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def penalised(self) -> bool:
        """Whether the law of a token depends on the tokens before it through a penalty."""
        penalties = self.repetition_penalty, self.frequency_penalty, self.presence_penalty
        return penalties != (1.0, 0.0, 0.0)

    @property
    def adjusted(self) -> bool:
        """Whether logits change before the temperature divides them."""
        return self.penalised or bool(self.logit_bias) or self.min_tokens > 0

    def answer_seed(self, seed: int, answer: int) -> int:
        """The seed of one of `n` answers: the first keeps it, the others hash it."""
        if answer == 0:
            return seed
        words = seed.to_bytes(8, "little") + answer.to_bytes(8, "little")
        return int.from_bytes(blake2b(words, digest_size=8).digest(), "little")

    def _check_law(self) -> None:
        _number("repetition_penalty", self.repetition_penalty)
        if not 0 < self.repetition_penalty < math.inf:
            _refuse("repetition_penalty", self.repetition_penalty, "a finite number above 0")
        for name in ("frequency_penalty", "presence_penalty"):
            _number(name, getattr(self, name))
            if not -2 <= getattr(self, name) <= 2:
                _refuse(name, getattr(self, name), "from -2 to 2")
        _number("temperature", self.temperature)
        if not 0 <= self.temperature < math.inf:
            _refuse("temperature", self.temperature, "a finite number, 0 or more")
        _number("min_p", self.min_p)
        if not 0 <= self.min_p <= 1:
            _refuse("min_p", self.min_p, "from 0 to 1; use 0 to keep all tokens")
        _number("top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            _refuse("top_p", self.top_p, "above 0 and at most 1; use 1 to keep all tokens")
        _whole("top_k", self.top_k, -1, _LARGEST_COUNT)
        self._check_bias()

    def _check_bias(self) -> None:
        allowed = (
            f"a mapping of at most {MAX_LOGIT_BIAS} token ids to numbers from "
            f"{-LARGEST_BIAS:.0f} to {LARGEST_BIAS:.0f}"
        )
        bias = self.logit_bias
        if not isinstance(bias, Mapping) or len(bias) > MAX_LOGIT_BIAS:
            _refuse("logit_bias", bias, allowed)
        for token, value in bias.items():
            fair = _is_number(value) and -LARGEST_BIAS <= value <= LARGEST_BIAS
            if not _is_token(token) or not fair:
                _refuse("logit_bias", bias, allowed)

    def _check_endings(self) -> None:
        if self.structured_output is not None:
            if not isinstance(self.structured_output, StructuredOutput):
                _refuse("structured_output", self.structured_output, "a StructuredOutput or None")
            for name, neutral in (("min_tokens", 0), ("ignore_eos", False)):
                if getattr(self, name) != neutral:
                    allowed = f"{neutral} with structured_output, whose grammar decides the end"
                    _refuse(name, getattr(self, name), allowed)
        if not isinstance(self.stop, str | tuple | list) or not all(
            isinstance(text, str) and text for text in self.stop_strings
        ):
            _refuse("stop", self.stop, "a text or several, none of them empty")
        tokens = self.stop_token_ids
        fair = isinstance(tokens, tuple | list) and all(map(_is_token, tokens))
        if not fair or len(tokens) > MAX_STOP_TOKEN_IDS:
            _refuse("stop_token_ids", tokens, f"at most {MAX_STOP_TOKEN_IDS} token ids")


def _refuse(name: str, value: object, allowed: str) -> None:
    raise ValueError(f"{name} is {value!r}; it must be {allowed}")


def _whole(name: str, value: Any, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        _refuse(name, value, f"a whole number from {lowest} to {highest}")


def _number(name: str, value: Any) -> None:
    if not _is_number(value):
        _refuse(name, value, "a number")


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float)


def _is_token(value: Any) -> bool:
    fits = not isinstance(value, bool) and isinstance(value, int)
    return fits and 0 <= value <= _LARGEST_COUNT
