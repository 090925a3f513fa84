"""What the sampler keeps on the device for each slot: token counts, biases, stop tokens.

It lies beside the cache, is donated to every step, and is written whole when a request that needs
it begins. Requests without penalties, biases and a least length never read it.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import register_dataclass

from dsinfer_jax.engine.draws import Draws
from dsinfer_jax.engine.request import Request
from dsinfer_jax.engine.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS

Array = jax.Array
Leaf = jax.Array | np.ndarray

_WORD_BITS = 32


@register_dataclass
@dataclass(frozen=True)
class SlotState:
    """One entry for each slot. Unused ids are the size of the vocabulary."""

    counts: Leaf  # [slots, vocab] int32: how often each token is in the output
    prompt: Leaf  # [slots, mask words] int32: bit set of the tokens in the prompt
    bias_ids: Leaf  # [slots, 300] int32
    biases: Leaf  # [slots, 300] float32
    stop_ids: Leaf  # [slots, 16] int32


def mask_words(vocab_size: int) -> int:
    """Words of a packed set of tokens: bit `i % 32` of word `i // 32` is token i."""
    return -(-vocab_size // _WORD_BITS)


def empty_state(slots: int, vocab_size: int) -> SlotState:
    """A state that changes nothing (numpy)."""
    return SlotState(
        counts=np.zeros((slots, vocab_size), np.int32),
        prompt=np.zeros((slots, mask_words(vocab_size)), np.int32),
        bias_ids=np.full((slots, MAX_LOGIT_BIAS), vocab_size, np.int32),
        biases=np.zeros((slots, MAX_LOGIT_BIAS), np.float32),
        stop_ids=np.full((slots, MAX_STOP_TOKEN_IDS + 1), vocab_size, np.int32),
    )


def slot_entry(request: Request, vocab_size: int, eos_token_id: int) -> SlotState:
    """The state of one slot for a request, its output so far counted (numpy, no slot axis)."""
    entry = jax.tree.map(lambda leaf: leaf[0], empty_state(1, vocab_size))
    params = request.params
    np.add.at(entry.counts, np.asarray(request.token_ids, np.int64), 1)
    entry.prompt[:] = packed_set(request.prompt_token_ids, vocab_size)
    for place, (token, bias) in enumerate(params.logit_bias.items()):
        entry.bias_ids[place], entry.biases[place] = token, bias
    stops = [*([] if params.ignore_eos else [eos_token_id]), *params.stop_token_ids]
    entry.stop_ids[: len(stops)] = stops
    return entry


def packed_set(tokens: object, vocab_size: int) -> np.ndarray:
    """Token ids as a bit set: int32 [mask words]."""
    bits = np.zeros(mask_words(vocab_size) * _WORD_BITS, np.uint8)
    bits[np.asarray(tokens, np.int64)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def unpacked(words: Array, vocab_size: int) -> Array:
    """Bit sets as bool [..., vocab]."""
    bits = (words[..., None] >> jnp.arange(_WORD_BITS, dtype=jnp.int32)) & 1
    return bits.reshape(*words.shape[:-1], -1)[..., :vocab_size] != 0


def set_slot(state: Any, slot: Array, entry: Any) -> Any:
    """Write one slot of a tree whose leaves have slots first."""
    return jax.tree.map(lambda leaf, new: leaf.at[slot].set(new), state, entry)


def adjust(logits: Array, draws: Draws, state: SlotState, earlier: Array | None = None) -> Array:
    """Biases, penalties and forbidden endings of each row (docs/sampling.md): [rows, vocab].

    Args:
        earlier: [rows, n] int32, output before each row that is not counted yet; ids out of the
            vocabulary are none.
    """

    def adjusted() -> Array:
        counts = jnp.asarray(state.counts)[draws.slots]
        if earlier is not None:
            rows = jnp.arange(len(logits))[:, None]
            counts = counts.at[rows, earlier].add(1, mode="drop")
        changed = _penalised(_biased(logits, draws, state), counts, draws, state)
        changed = _without_endings(changed, draws, state)
        return jnp.where(draws.adjusted[:, None], changed, logits)

    return lax.cond(jnp.any(draws.adjusted), adjusted, lambda: logits)


def count_tokens(state: SlotState, draws: Draws, token_ids: Leaf, counted: Array) -> SlotState:
    """Add the chosen tokens of the rows that are `counted` to the counts of their slots."""
    ones = counted.astype(jnp.int32)
    counts = jnp.asarray(state.counts).at[draws.slots, token_ids].add(ones)
    return SlotState(counts, state.prompt, state.bias_ids, state.biases, state.stop_ids)


def _biased(logits: Array, draws: Draws, state: SlotState) -> Array:
    rows = jnp.arange(len(logits))[:, None]
    ids = jnp.asarray(state.bias_ids)[draws.slots]
    return logits.at[rows, ids].add(jnp.asarray(state.biases)[draws.slots], mode="drop")


def _penalised(logits: Array, counts: Array, draws: Draws, state: SlotState) -> Array:
    prompt = unpacked(jnp.asarray(state.prompt)[draws.slots], logits.shape[-1])
    repetition = jnp.asarray(draws.repetition)[:, None]
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(prompt | (counts > 0), repeated, logits)
    logits = logits - draws.frequency[:, None] * counts.astype(jnp.float32)
    return logits - draws.presence[:, None] * (counts > 0).astype(jnp.float32)


def _without_endings(logits: Array, draws: Draws, state: SlotState) -> Array:
    early = jnp.asarray(draws.positions) < draws.first_end
    ids = jnp.where(early[:, None], jnp.asarray(state.stop_ids)[draws.slots], logits.shape[-1])
    return logits.at[jnp.arange(len(logits))[:, None], ids].set(-jnp.inf, mode="drop")
