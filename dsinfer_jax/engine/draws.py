"""How to choose the token of each row: small host arrays that travel with the plan of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import jax
import numpy as np
from jax.tree_util import register_dataclass

from dsinfer_jax.engine.random import seed_words
from dsinfer_jax.engine.request import Request

Leaf = jax.Array | np.ndarray  # numpy on the host, device arrays inside a program

ONE = 2.0**31  # mass of probability one
UNLIMITED = np.uint32(2**32 - 1)  # no sum of masses exceeds it
_ALL_TOKENS = 2**31 - 1
_COLDEST = 1e-5  # positive temperatures below it count as this: less would leave float32


@register_dataclass
@dataclass(frozen=True)
class Draws:
    """One entry for each row. `slots` says whose `SlotState` applies."""

    temperature: Leaf  # [rows] float32; 0: the largest logit
    top_k: Leaf  # [rows] int32; 2^31 - 1 when off
    top_mass: Leaf  # [rows] uint32: top_p in units of 2^-31; 2^32 - 1 when off
    log_min_p: Leaf  # [rows] float32; -inf when off
    seeds: Leaf  # [rows, 2] uint32
    positions: Leaf  # [rows] int32: absolute position of the token to choose
    slots: Leaf  # [rows] int32
    first_end: Leaf  # [rows] int32: stop tokens are forbidden at positions before it
    ends: Leaf  # [rows] bool: the end-of-sequence token ends the output
    repetition: Leaf  # [rows] float32
    frequency: Leaf  # [rows] float32
    presence: Leaf  # [rows] float32
    adjusted: Leaf  # [rows] bool: the four above or biases change the logits
    coupled: Leaf  # [rows] bool: draw by Gumbel noise, whatever was drafted (design.md 6)
    filtered_logprobs: Leaf  # [rows] bool: report the law that was drawn from, not the raw one
    listed: Leaf  # [rows] bool: list the most likely tokens


def idle_draws(rows: int) -> Draws:
    """Draws of rows that nobody reads (numpy): the largest logit."""
    return Draws(
        temperature=np.zeros(rows, np.float32),
        top_k=np.full(rows, _ALL_TOKENS, np.int32),
        top_mass=np.full(rows, UNLIMITED, np.uint32),
        log_min_p=np.full(rows, -np.inf, np.float32),
        seeds=np.zeros((rows, 2), np.uint32),
        positions=np.zeros(rows, np.int32),
        slots=np.zeros(rows, np.int32),
        first_end=np.zeros(rows, np.int32),
        ends=np.zeros(rows, bool),
        repetition=np.ones(rows, np.float32),
        frequency=np.zeros(rows, np.float32),
        presence=np.zeros(rows, np.float32),
        adjusted=np.zeros(rows, bool),
        coupled=np.zeros(rows, bool),
        filtered_logprobs=np.zeros(rows, bool),
        listed=np.zeros(rows, bool),
    )


def set_draw(draws: Draws, row: int, request: Request, position: int) -> None:
    """Write one row of host draws: of the request's token at an absolute position."""
    params = request.params
    warm = max(params.temperature, _COLDEST) if params.temperature > 0 else 0.0
    draws.temperature[row] = warm
    draws.top_k[row] = params.top_k if params.top_k > 0 else _ALL_TOKENS
    draws.top_mass[row] = UNLIMITED if params.top_p == 1 else int(params.top_p * ONE)
    draws.log_min_p[row] = log(params.min_p) if params.min_p > 0 else -np.inf
    draws.seeds[row] = seed_words(request.seed)
    draws.positions[row] = position
    draws.slots[row] = request.slot
    draws.first_end[row] = len(request.prompt_token_ids) + params.min_tokens
    draws.ends[row] = not params.ignore_eos
    draws.repetition[row] = params.repetition_penalty
    draws.frequency[row] = params.frequency_penalty
    draws.presence[row] = params.presence_penalty
    draws.adjusted[row] = params.adjusted
    draws.coupled[row] = request.coupled
    draws.filtered_logprobs[row] = params.filtered_logprobs
    draws.listed[row] = params.top_logprobs > 0


def clear_draw(draws: Draws, row: int) -> None:
    """Let a row cost nothing: no draw, no adjustment, no list."""
    draws.temperature[row] = 0
    draws.adjusted[row] = False
    draws.listed[row] = False
    draws.filtered_logprobs[row] = False


def host_draws(rows: Sequence[tuple[int, Request]], size: int) -> Draws:
    """Draws of the next tokens of requests in these rows of `size` (numpy)."""
    draws = idle_draws(size)
    for row, request in rows:
        set_draw(draws, row, request, request.length)
    return draws
