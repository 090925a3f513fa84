"""The law of a token in float64, by sorting: what the sampler must agree with."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dsinfer_jax.engine.sampling_params import SamplingParams


def adjusted(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    eos: int = 1,
) -> np.ndarray:
    """One row of logits after biases, penalties and forbidden endings, token by token."""
    result = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        result[token] += bias
    counts = Counter(output)
    for token in {*prompt, *output}:
        factor = params.repetition_penalty
        result[token] *= 1 / factor if result[token] > 0 else factor
    for token, count in counts.items():
        result[token] -= params.frequency_penalty * count + params.presence_penalty
    if len(output) < params.min_tokens:
        result[[*([] if params.ignore_eos else [eos]), *params.stop_token_ids]] = -np.inf
    return result


def law(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities [vocab] of one row of logits, which may hold -inf."""
    logits = logits.astype(np.float64)
    if params.temperature == 0:
        chosen = np.zeros(len(logits))
        chosen[np.argmax(logits)] = 1
        return chosen
    warm = np.exp((logits - logits.max()) / params.temperature)
    warm /= warm.sum()
    order = np.argsort(-logits, kind="stable")  # ties: lowest id first
    before = np.cumsum(warm[order]) - warm[order]
    kept = before <= params.top_p if params.top_p < 1 else np.ones(len(order), bool)
    if params.top_k > 0:
        kept &= np.arange(len(order)) < params.top_k
    kept &= warm[order] >= params.min_p * warm.max()
    result = np.zeros(len(logits))
    result[order[kept]] = warm[order[kept]]
    return result / result.sum()
