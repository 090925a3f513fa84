"""The law of a token in float64, by sorting: what the sampler must agree with."""

import numpy as np

from dsinfer_jax.engine.request import SamplingParams


def law(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities [vocab] of one row of logits."""
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
    result = np.zeros(len(logits))
    result[order[kept]] = warm[order[kept]]
    return result / result.sum()
