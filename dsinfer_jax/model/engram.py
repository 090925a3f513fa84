"""Hashed n-gram memory: token ids to table rows, rows to a gated update of the streams (model.md
8)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsinfer_jax.config import EngramConfig, ModelConfig
from dsinfer_jax.model.company import ALONE, Company
from dsinfer_jax.model.numerics import Numerics, dequantise, dequantised_rows, rows_product
from dsinfer_jax.model.params import EngramParams, HashParams
from dsinfer_jax.model.plan import Plan, RowIndex

Array = jax.Array

GATE_CLAMP = 1e-6
IMAGE = -1  # compressed id of a token outside the folded vocabulary


def remember_tokens(recent: Array, plan: Plan, index: RowIndex) -> tuple[Array, Array]:
    """The tokens each row may look back to, before and after this step.

    Args:
        recent: [slots, ring] int32 token ids by position.

    Returns:
        The rings to look back into (with what the plan knows of earlier tokens), and the rings to
        keep.
    """
    slots, ring = recent.shape
    if plan.previous_tokens is not None:
        # each sequence's slice starts where its first row stands
        first = (
            jnp.full(plan.slots.shape[0], -1, jnp.int32)
            .at[index.sequence]
            .max(jnp.where(index.valid & (index.preceding == 0), index.positions, -1))
        )
        distance = jnp.arange(1, plan.previous_tokens.shape[1] + 1, dtype=jnp.int32)
        position = first[:, None] - distance
        known = (position >= 0) & (plan.previous_tokens >= 0)
        slot = jnp.where(known, plan.slots[:, None], slots)
        recent = recent.at[slot, position % ring].set(plan.previous_tokens, mode="drop")
    slot, place = index.ring_place(ring, slots)
    return recent, recent.at[slot, place].set(plan.token_ids, mode="drop")


def look_back(recent: Array, plan: Plan, index: RowIndex, hashes: HashParams, count: int) -> Array:
    """Compressed ids of the last `count` tokens of every row, latest first: [rows, count] int32.

    Positions before the sequence give the pad id; so do an image token and everything before it.
    """
    distance = jnp.arange(count, dtype=jnp.int32)
    position = index.positions[:, None] - distance
    row = jnp.arange(index.positions.shape[0], dtype=jnp.int32)[:, None] - distance
    in_step = distance <= index.preceding[:, None]
    ring_token = recent[index.slot[:, None], position % recent.shape[1]]
    token = jnp.where(in_step, plan.token_ids[row], ring_token)
    return fold_tokens(token, position >= 0, hashes)


def fold_tokens(tokens: Array, exists: Array, hashes: HashParams) -> Array:
    """Compressed ids of a look-back row [rows, count], latest token first (model.md 8.2)."""
    vocab = hashes.token_map.shape[0]
    inside = (tokens >= 0) & (tokens < vocab)
    compressed = jnp.where(inside, hashes.token_map[jnp.clip(tokens, 0, vocab - 1)], IMAGE)
    before_image = jnp.cumsum(exists & (compressed == IMAGE), axis=1) == 0
    return jnp.where(exists & before_image, compressed, hashes.pad_id)


def table_rows(ngrams: Array, hashes: HashParams, config: EngramConfig) -> tuple[Array, ...]:
    """Rows to look up, one array [rows, columns] int32 per engram layer (model.md 8.3)."""
    result = []
    for layer, orders in enumerate(config.primes):
        mixed = _multiply(ngrams[:, 0], hashes.multipliers[layer, 0])
        columns, offset = [], 0
        for order, primes in enumerate(orders, start=1):
            product = _multiply(ngrams[:, order], hashes.multipliers[layer, order])
            mixed = tuple(a ^ b for a, b in zip(mixed, product, strict=True))
            for prime in primes:
                columns.append(_remainder(mixed, prime) + offset)
                offset += prime
        result.append(jnp.stack(columns, axis=1))
    return tuple(result)


_Limbs = tuple[Array, ...]  # 16-bit limbs of a 64-bit number in uint32, lowest first


def _multiply(value: Array, multiplier: Array) -> _Limbs:
    """64-bit product of [rows] int32 and four 16-bit limbs; it never exceeds 2^63 (model.md
    8.3)."""
    value = value.astype(jnp.uint32)
    low, high = value & 0xFFFF, value >> 16
    sums = [jnp.zeros_like(value) for _ in range(5)]
    for place in range(4):
        for part, shift in ((low, 0), (high, 1)):
            if place + shift < 4:
                product = part * multiplier[place]
                sums[place + shift] += product & 0xFFFF
                sums[place + shift + 1] += product >> 16
    limbs, carry = [], jnp.zeros_like(value)
    for total in sums[:4]:
        total = total + carry
        limbs.append(total & 0xFFFF)
        carry = total >> 16
    return tuple(limbs)


def _remainder(limbs: _Limbs, prime: int) -> Array:
    """The 64-bit number modulo a prime below 2^31, digit by digit so that nothing exceeds 32
    bits."""
    digit_bits = max(bits for bits in (16, 8, 4, 2, 1) if prime.bit_length() + bits <= 32)
    rest = jnp.zeros_like(limbs[0])
    for limb in reversed(limbs):
        for shift in range(16 - digit_bits, -1, -digit_bits):
            digit = (limb >> shift) & ((1 << digit_bits) - 1)
            rest = ((rest << digit_bits) | digit) % jnp.uint32(prime)
    return rest.astype(jnp.int32)


class Engram(NamedTuple):
    """What one engram layer did, for those who look."""

    streams: Array  # [rows, streams, hidden]
    rows_read: Array  # [rows, columns * width], dequantised
    keys_and_value: Array  # [rows, streams + 1, hidden]
    gate: Array  # [rows, streams] float32


def engram(
    streams: Array,
    rows: Array,
    is_image: Array,
    params: EngramParams,
    config: ModelConfig,
    numerics: Numerics,
    company: Company = ALONE,
) -> Engram:
    """Add the gated memory of each row's n-grams to its streams. Image rows stay unchanged."""
    stored = company.table_rows(params.embed, rows)
    read = dequantised_rows(stored, numerics.dtype).reshape(rows.shape[0], -1)
    projected = numerics.store(rows_product(read, dequantise(params.wkv, numerics.dtype)))
    projected = projected.reshape(rows.shape[0], config.hc_mult + 1, config.hidden_size)
    keys, value = projected[:, :-1].astype(jnp.float32), projected[:, -1:].astype(jnp.float32)
    weight = params.q_weight.astype(jnp.float32) * params.k_weight.astype(jnp.float32)
    trunk = streams.astype(jnp.float32)
    open_gate = gate(trunk, keys, weight, config.rms_norm_eps)
    updated = numerics.store(trunk + open_gate[..., None] * value)
    return Engram(jnp.where(is_image[:, None, None], streams, updated), read, projected, open_gate)


def gate(streams: Array, keys: Array, weight: Array, eps: float) -> Array:
    """sigmoid of the signed root of the normalised product of stream and key: [rows, streams]."""
    stream_rms = lax.rsqrt(jnp.mean(streams * streams, axis=-1) + eps)
    key_rms = lax.rsqrt(jnp.mean(keys * keys, axis=-1) + eps)
    product = jnp.sum(streams * weight * keys, axis=-1) * stream_rms * key_rms
    product = product * jnp.float32(streams.shape[-1] ** -0.5)
    root = jnp.sqrt(jnp.maximum(jnp.abs(product), GATE_CLAMP))
    return jax.nn.sigmoid(jnp.copysign(root, product))
