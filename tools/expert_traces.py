"""Traces of expert loads: synthetic ones, and routing that was recorded from a model.

A trace gives, step by step, how many rows chose each expert of each layer: [layers, experts].
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]  # [layers, experts]


@dataclass(frozen=True)
class Traffic:
    """What one rank computes in a step, and how fast that changes.

    Attributes:
        rows: rows of a rank in a step.
        requests: requests of a rank whose rows are in a step.
        lifetime: steps until the requests are others.
        drift: steps until the topics that people ask about are others.
    """

    rows: int
    requests: int
    lifetime: float
    drift: float


# steps of decode take some 30 ms and those of prefill some 600 ms: both drift within hours
DECODE = Traffic(rows=96 * 4, requests=96, lifetime=500, drift=1e6)
PREFILL = Traffic(rows=4096, requests=2, lifetime=1, drift=5e4)

TOPICS = 16
TOPIC_SKEW = 0.5  # standard deviation of log popularity that comes from all topics together


def synthetic(
    traffic: Traffic,
    ranks: int,
    layers: int,
    experts: int,
    experts_per_token: int,
    skew: float,
    seed: int,
) -> Iterator[Counts]:
    """Loads without end.

    Log popularity of an expert is normal with deviation `skew`, plus its affinity to topics times
    the weights of the topics. The weights follow the population, which drifts, and the requests at
    hand, which are a sample of it and change with their lifetime. Counts are a multinomial draw.
    """
    random = np.random.default_rng(seed)
    base = random.normal(0, skew, (layers, experts))
    affinity = random.normal(0, TOPIC_SKEW, (TOPICS, layers * experts)) / TOPICS**0.5
    population, sample = random.normal(0, 1, (2, TOPICS))
    keep_population, keep_sample = np.exp(-1 / traffic.drift), np.exp(-1 / traffic.lifetime)
    deviation = (traffic.requests * ranks) ** -0.5
    pairs = traffic.rows * ranks * experts_per_token
    while True:
        population = _next(population, keep_population, random)
        sample = _next(sample, keep_sample, random)
        topics = ((population + deviation * sample) @ affinity).reshape(layers, experts)
        popularity = np.exp(base + topics)
        popularity /= popularity.sum(axis=1, keepdims=True)
        # a row chooses an expert once: no expert has more than every row
        popularity = np.minimum(popularity, 1 / experts_per_token)
        yield random.multinomial(pairs, popularity / popularity.sum(axis=1, keepdims=True))


def _next(state: NDArray[Any], keep: float, random: np.random.Generator) -> NDArray[Any]:
    """One step of a walk that returns to zero and stays normal with deviation 1."""
    return keep * state + (1 - keep * keep) ** 0.5 * random.normal(0, 1, state.shape)


class TraceError(ValueError):
    """A trace file that cannot be used; the message names the file and what is expected."""


@dataclass(frozen=True)
class Recording:
    """Routing of a model, as stored in a `.npz` file in one of two forms.

    Attributes:
        counts: [steps, layers, experts], loads as they were; or None.
        choices: [tokens, layers, experts per token], the experts of every token of some sequences,
            one sequence after another; or None.
        lengths: [sequences], tokens of each sequence.
        experts: number of experts.
    """

    counts: NDArray[Any] | None
    choices: NDArray[Any] | None
    lengths: NDArray[Any] | None
    experts: int

    @property
    def layers(self) -> int:
        array = self.counts if self.counts is not None else self.choices
        assert array is not None
        return int(array.shape[1])


def read_recording(path: Path) -> Recording:
    """Read a recording: `counts`; or `choices`, `lengths` and `experts` (a number).

    Raises:
        TraceError: the file cannot be read, or its arrays do not fit together.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read as .npz ({error})") from error
    counts = arrays.get("counts")
    if counts is not None:
        if counts.ndim != 3 or counts.dtype.kind not in "iu" or counts.min(initial=0) < 0:
            raise TraceError(
                f"counts of {path} is {counts.dtype}{list(counts.shape)}; it must hold numbers of "
                "rows, [steps, layers, experts]"
            )
        return Recording(counts, None, None, counts.shape[2])
    missing = [name for name in ("choices", "lengths", "experts") if name not in arrays]
    if missing:
        raise TraceError(
            f"{path} lacks {', '.join(missing)}; it must hold counts, or choices, lengths and "
            "experts"
        )
    choices, lengths, experts = arrays["choices"], arrays["lengths"], int(arrays["experts"])
    if choices.ndim != 3 or lengths.ndim != 1 or lengths.sum() != len(choices):
        raise TraceError(
            f"{path} holds choices {list(choices.shape)} and lengths that sum to "
            f"{lengths.sum()}; choices must be [tokens, layers, experts per token] with as many "
            "tokens"
        )
    if choices.min(initial=0) < 0 or choices.max(initial=0) >= experts:
        raise TraceError(f"{path} has choices outside 0 to {experts - 1}, the experts")
    return Recording(None, choices, lengths, experts)


def replay(recording: Recording, traffic: Traffic, ranks: int, seed: int) -> Iterator[Counts]:
    """Loads of a recording: the recorded steps over and over, or requests that each go through a
    recorded sequence, from a random place on and then through another, until without end.
    """
    if recording.counts is not None:
        while True:
            yield from recording.counts.astype(np.int64)
    assert recording.choices is not None and recording.lengths is not None
    random = np.random.default_rng(seed)
    starts = np.cumsum(recording.lengths) - recording.lengths
    requests = traffic.requests * ranks
    each = max(1, traffic.rows // traffic.requests)
    sequence = random.integers(0, len(starts), requests)
    place = (random.random(requests) * recording.lengths[sequence]).astype(np.int64)
    offsets = np.arange(recording.layers)[:, None] * recording.experts
    while True:
        at = (place[:, None] + np.arange(each)) % recording.lengths[sequence][:, None]
        rows = (starts[sequence][:, None] + at).reshape(-1)
        chosen = recording.choices[rows].astype(np.int64) + offsets
        size = recording.layers * recording.experts
        yield np.bincount(chosen.reshape(-1), minlength=size).reshape(-1, recording.experts)
        place += each
        ended = place >= recording.lengths[sequence]
        sequence = np.where(ended, random.integers(0, len(starts), requests), sequence)
        place = np.where(ended, 0, place)
