"""Blocks and their content: counts, eviction, hit rules, and why a match ended."""

import random

import pytest

from dsinfer_jax.config import CACHE_BLOCK_TOKENS, tiny
from dsinfer_jax.engine.blocks import BlockPool
from dsinfer_jax.engine.prefix_cache import PrefixCache, PrefixHit
from dsinfer_jax.engine.replay import Replay
from dsinfer_jax.engine.request import CacheMiss, Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.model.plan import Truncation

BLOCK = CACHE_BLOCK_TOKENS
CONFIG = tiny()  # 10 layers, 6 of them producers, a window of 8
EXACT = Replay.of("exact", Truncation(), CONFIG)
PROMPT = list(range(3, 400))


def request(tokens: list[int], **fields) -> Request:
    return Request(0, tokens, SamplingParams(), seed=0, **fields)


def fill(cache: PrefixCache, tokens: list[int], **fields) -> list[int]:
    """Compute and store a prompt as a request that has ended; returns its blocks."""
    one = request(tokens, **fields)
    blocks = cache.pool.take(len(tokens) // BLOCK)
    assert blocks is not None
    one.blocks = blocks
    cache.store(one, len(tokens))
    cache.pool.give_back(blocks)
    return blocks


def hit_of(cache: PrefixCache, tokens: list[int], **fields) -> PrefixHit:
    return cache.match(request(tokens, **fields))


def miss_of(cache: PrefixCache, tokens: list[int], **fields) -> CacheMiss:
    miss = hit_of(cache, tokens, **fields).miss
    assert miss is not None
    return miss


def test_a_block_cannot_be_given_back_twice() -> None:
    pool = BlockPool(3)
    assert pool.take(4) is None
    taken = pool.take(2)
    assert taken == [0, 1]
    pool.give_back(taken)
    assert pool.free == 3
    with pytest.raises(AssertionError, match="block 0"):
        pool.give_back([0])


def test_empty_blocks_go_first_then_the_longest_unused() -> None:
    lost: list[int] = []
    pool = BlockPool(5, lost.append)
    first, second = pool.take(2), pool.take(2)
    for block in (*first, *second):
        pool.keep(block)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(1) == [4]
    assert lost == []
    pool.share([first[0]])  # used again: no longer the longest unused
    pool.give_back([first[0]])
    assert pool.take(3) == [first[1], second[1], second[0]]
    assert lost == [first[1], second[1], second[0]]
    assert pool.free == 1


def test_random_owners_keep_the_counts_right() -> None:
    dice, pool = random.Random(0), BlockPool(20)
    held: list[list[int]] = []
    for _ in range(3000):
        if held and dice.random() < 0.5:
            pool.give_back(held.pop(dice.randrange(len(held))))
        elif held and dice.random() < 0.3:
            shared = dice.choice(held)
            pool.share(shared)
            held.append(list(shared))
        elif (taken := pool.take(dice.randint(1, 6))) is not None:
            if dice.random() < 0.5:
                pool.keep(taken[0])
            held.append(taken)
        owned = {block for blocks in held for block in blocks}
        assert pool.free == 20 - len(owned)
        assert all(pool.owners(b) == sum(b in blocks for blocks in held) for b in range(20))


def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute() -> None:
    """E05 and E29: reuse in grains of 128, of any prompt, but never all of it."""
    cache = PrefixCache(64, EXACT, "")
    blocks = fill(cache, list(range(4096)))
    for length in (1, 64, 127, 128, 129, 130, 133, 136, 255, 256, 257, 512, 4095, 4096):
        hit = hit_of(cache, list(range(length)))
        assert hit.tokens == (length - 1) // BLOCK * BLOCK
        assert hit.blocks == blocks[: (length - 1) // BLOCK]
        assert hit.start <= hit.tokens < length


@pytest.mark.parametrize(
    ("mode", "keep", "prompt", "stored", "hit", "start"),
    [
        ("exact", 0, 1000, 9999, 896, 896 - 70),  # 10 layers x (8 - 1) rows before the hit
        ("exact", 0, 1000, 512, 512, 512 - 70),
        ("exact", 0, 129, 9999, 128, 58),
        ("exact", 14, 1000, 9999, 896, 896 - 42),  # 6 producer layers
        ("exact", 140, 1000, 9999, 896, 860 - 42),  # the kept suffix begins before the hit
        ("exact", 140, 150, 9999, 128, 0),
        ("bounded", 14, 1000, 9999, 896, 768),
        ("bounded", 140, 1000, 9999, 768, 640),  # 896 would cut the kept suffix
        ("bounded", 140, 1000, 512, 512, 384),
        ("bounded", 140, 300, 9999, 128, 0),
        ("bounded", 140, 267, 9999, 0, 0),
        ("off", 0, 1000, 9999, 0, 0),
    ],
)
def test_hit_rules(mode: str, keep: int, prompt: int, stored: int, hit: int, start: int) -> None:
    truncation = Truncation("compact", keep) if keep else Truncation()
    cache = PrefixCache(64, Replay.of(mode, truncation, CONFIG), "")
    fill(cache, list(range(min(stored, prompt))))
    found = hit_of(cache, list(range(prompt)))
    assert (found.tokens, found.start) == (hit, start)


def test_the_chain_covers_everything_before_a_block() -> None:
    cache = PrefixCache(16, EXACT, "")
    fill(cache, PROMPT)
    other = [9, *PROMPT[1:]]
    assert hit_of(cache, other).tokens == 0
    assert hit_of(cache, PROMPT).tokens == 3 * BLOCK


def test_tenants_and_formats_do_not_share() -> None:
    cache = PrefixCache(16, EXACT, "")
    fill(cache, PROMPT, tenant="one")
    assert hit_of(cache, PROMPT, tenant="one").tokens == 3 * BLOCK
    assert hit_of(cache, PROMPT, tenant="two").tokens == 0
    assert hit_of(cache, PROMPT).tokens == 0
    salted = PrefixCache(16, EXACT, "another policy")
    salted._block_of = cache._block_of
    assert hit_of(salted, PROMPT, tenant="one").tokens == 0


def test_why_a_match_ended() -> None:
    cache = PrefixCache(8, EXACT, "")
    blocks = fill(cache, PROMPT)
    assert hit_of(cache, PROMPT).miss is None
    changed = [*PROMPT[:300], 7, *PROMPT[301:]]
    assert miss_of(cache, changed) == CacheMiss(
        2, "blocks", 300,
        "block 2 (tokens 256 to 383) differs from what is stored at token 300, id 7",
    )  # fmt: skip
    longer = [*range(3, 387), *range(200)]
    assert miss_of(cache, longer) == CacheMiss(
        3, "blocks", 384, "block 3 (tokens 384 to 511) was never stored"
    )
    short = miss_of(cache, PROMPT[:128])
    assert (short.block, short.token) == (0, 0)
    assert "too short" in short.detail

    taken = cache.pool.take(6)  # five empty ones, and the end of what is kept
    assert taken is not None
    assert blocks[2] in taken
    assert miss_of(cache, PROMPT) == CacheMiss(
        2, "blocks", 256, "block 2 (tokens 256 to 383) was evicted to make room"
    )


def test_a_hit_too_short_for_its_windows_says_so() -> None:
    wide = Replay("exact", keep=0, reach=10 * BLOCK)
    cache = PrefixCache(8, wide, "")
    fill(cache, PROMPT)
    hit = hit_of(cache, PROMPT)
    assert (hit.tokens, hit.start) == (3 * BLOCK, 0)
    assert hit.miss is not None
    assert (hit.miss.part, hit.miss.token) == ("windows", 3 * BLOCK)


def test_equal_prompts_computed_side_by_side_are_stored_once() -> None:
    cache = PrefixCache(8, EXACT, "")
    one, other = request(PROMPT), request(PROMPT)
    one.blocks, other.blocks = cache.pool.take(3) or [], cache.pool.take(3) or []
    cache.store(one, len(PROMPT))
    cache.store(other, len(PROMPT))
    assert hit_of(cache, PROMPT).blocks == one.blocks
    cache.pool.give_back(other.blocks)
    cache.pool.give_back(one.blocks)
    assert cache.pool.free == 8
    assert cache.pool.take(5) is not None
    assert hit_of(cache, PROMPT).blocks == one.blocks


def test_forgotten_blocks_are_not_found() -> None:
    cache = PrefixCache(8, EXACT, "")
    blocks = fill(cache, PROMPT)
    cache.forget(blocks[1:2])
    assert hit_of(cache, PROMPT).tokens == BLOCK
    cache.clear()
    assert hit_of(cache, PROMPT).tokens == 0
    assert cache.pool.take(8) is not None
