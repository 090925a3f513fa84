"""Which blocks hold which tokens: prompts that begin alike share their first blocks.

A block of 128 tokens is known by a digest of its tokens and of all tokens before it (engine.md
3.6). The first digest of the chain is salted with everything else that the content depends on, and
with the tenant of the request, so that tenants who must not learn of each other never share.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from dsinfer_jax.config import CACHE_BLOCK_TOKENS
from dsinfer_jax.engine.blocks import BlockPool
from dsinfer_jax.engine.replay import Replay
from dsinfer_jax.engine.request import CacheMiss, Request

_DIGEST_BYTES = 16


@dataclass(frozen=True)
class PrefixHit:
    """What the cache has of a request's tokens.

    Attributes:
        blocks: that hold its first tokens.
        start: first token to compute.
        miss: why it is not more; None if everything that may come from the cache does.
    """

    blocks: list[int]
    start: int
    miss: CacheMiss | None

    @property
    def tokens(self) -> int:
        """Tokens whose compressed keys are there."""
        return len(self.blocks) * CACHE_BLOCK_TOKENS


@dataclass(frozen=True)
class _Stored:
    digest: bytes
    parent: bytes
    tokens: np.ndarray  # [128] int32


class PrefixCache:
    """The blocks of a pool by content.

    Args:
        blocks: number of blocks in the pool.
        replay: what of a hit is computed again.
        salt: names the model, its weights' rounding policy and the cache formats.
    """

    def __init__(self, blocks: int, replay: Replay, salt: str) -> None:
        self.pool = BlockPool(blocks, self._evicted)
        self._replay, self._salt = replay, salt
        self._block_of: dict[bytes, int] = {}
        self._stored: list[_Stored | None] = [None] * blocks
        self._followers: dict[bytes, set[int]] = {}  # digest -> blocks stored right after it
        self._lost: OrderedDict[bytes, None] = OrderedDict()  # digests evicted lately

    @property
    def stored(self) -> int:
        """Blocks whose content can be found."""
        return len(self._block_of)

    def match(self, request: Request) -> PrefixHit:
        """What the cache has for a request that is about to be admitted."""
        prompt_length = len(request.prompt_token_ids)
        longest = self._replay.longest_hit(prompt_length, request.length)
        if longest == 0:
            return PrefixHit([], 0, self._too_short())
        chain = self._chain(request, longest // CACHE_BLOCK_TOKENS)
        found = (self._block_of.get(digest, -1) for digest in chain)
        blocks = list(takewhile(lambda block: block >= 0, found))
        hit = len(blocks) * CACHE_BLOCK_TOKENS
        start = self._replay.start(hit, prompt_length)
        if hit < longest:
            return PrefixHit(blocks, start, self._missing_block(request, chain, len(blocks)))
        if start == 0:
            return PrefixHit(blocks, start, self._windows_missing(hit))
        return PrefixHit(blocks, start, None)

    def store(self, request: Request, computed: int) -> None:
        """Remember the whole blocks of a request's first `computed` tokens."""
        if self._replay.mode == "off":
            return
        full = computed // CACHE_BLOCK_TOKENS
        if full <= request.stored_blocks:
            return
        chain = self._chain(request, full)
        for number in range(request.stored_blocks, full):
            self._store_block(request, chain, number)
        request.stored_blocks = full

    def forget(self, blocks: list[int]) -> None:
        """Never find these blocks again: what they hold cannot be trusted."""
        for block in blocks:
            self._drop(block)
            self.pool.forget(block)

    def clear(self) -> None:
        """Forget everything that is stored."""
        self.forget([block for block, stored in enumerate(self._stored) if stored])
        self._lost.clear()

    def _chain(self, request: Request, count: int) -> list[bytes]:
        """Digests of the request's first `count` blocks; computed once, kept with the request."""
        chain = request.block_digests
        while len(chain) < count:
            start = len(chain) * CACHE_BLOCK_TOKENS
            tokens = request.known_tokens(start, start + CACHE_BLOCK_TOKENS)
            content = np.array(tokens, np.int32).tobytes()
            chain.append(_digest(self._parent(request, len(chain)) + content))
        return chain[:count]

    def _parent(self, request: Request, number: int) -> bytes:
        if number:
            return request.block_digests[number - 1]
        return _digest(f"{self._salt}\0{request.tenant}".encode())

    def _store_block(self, request: Request, chain: list[bytes], number: int) -> None:
        digest, block = chain[number], request.blocks[number]
        if digest in self._block_of:
            return  # another request computed the same tokens; the first block stays the known one
        start = number * CACHE_BLOCK_TOKENS
        tokens = np.array(request.known_tokens(start, start + CACHE_BLOCK_TOKENS), np.int32)
        parent = self._parent(request, number)
        self._stored[block] = _Stored(digest, parent, tokens)
        self._block_of[digest] = block
        self._followers.setdefault(parent, set()).add(block)
        self._lost.pop(digest, None)
        self.pool.keep(block)

    def _evicted(self, block: int) -> None:
        stored = self._stored[block]
        assert stored is not None
        self._drop(block)
        self._lost[stored.digest] = None
        if len(self._lost) > len(self._stored):
            self._lost.popitem(last=False)

    def _drop(self, block: int) -> None:
        stored = self._stored[block]
        if stored is None:
            return
        self._stored[block] = None
        del self._block_of[stored.digest]
        siblings = self._followers[stored.parent]
        siblings.discard(block)
        if not siblings:
            del self._followers[stored.parent]

    def _too_short(self) -> CacheMiss:
        if self._replay.mode == "off":
            return CacheMiss(0, "blocks", 0, "the prefix cache is off")
        return CacheMiss(
            0, "blocks", 0,
            f"the prompt is too short: whole blocks of {CACHE_BLOCK_TOKENS} tokens are reused, and "
            "its end is computed in any case",
        )  # fmt: skip

    def _windows_missing(self, hit: int) -> CacheMiss:
        return CacheMiss(
            hit // CACHE_BLOCK_TOKENS, "windows", hit,
            f"the first {hit} tokens are stored, but their windows are not, and rebuilding those "
            "takes as many tokens: all are computed",
        )  # fmt: skip

    def _missing_block(self, request: Request, chain: list[bytes], number: int) -> CacheMiss:
        start = number * CACHE_BLOCK_TOKENS
        place = f"block {number} (tokens {start} to {start + CACHE_BLOCK_TOKENS - 1})"
        if chain[number] in self._lost:
            return CacheMiss(number, "blocks", start, f"{place} was evicted to make room")
        tokens = np.array(request.known_tokens(start, start + CACHE_BLOCK_TOKENS), np.int32)
        followers = self._followers.get(self._parent(request, number), ())
        alike = max((_common(tokens, self._stored[block]) for block in followers), default=None)
        if alike is None:
            return CacheMiss(number, "blocks", start, f"{place} was never stored")
        token = start + alike
        return CacheMiss(
            number, "blocks", token,
            f"{place} differs from what is stored at token {token}, id {int(tokens[alike])}",
        )  # fmt: skip


def _common(tokens: np.ndarray, stored: _Stored | None) -> int:
    """How many first tokens agree with a stored block that is not equal."""
    assert stored is not None
    return int(np.argmax(tokens != stored.tokens))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
