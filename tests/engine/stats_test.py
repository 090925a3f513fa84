"""Statistics: what a snapshot says of known runs, and the start-up check of the prefix cache."""

import numpy as np
import pytest
from engine_support import engine_of, run

from dsinfer_jax.engine import prefix_check
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.prefix_cache import PrefixCache, PrefixHit
from dsinfer_jax.engine.replay import Replay
from dsinfer_jax.engine.request import FinishReason, Request
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.stats import ExpertStats, Histogram, RequestStats

FOUR = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


def test_a_histogram_counts_everything_up_to_an_end() -> None:
    histogram = Histogram()
    for seconds in (0.0005, 0.001, 0.02, 1000.0):
        histogram.add(seconds)
    entries = histogram.entries("x")
    assert entries['x_bucket{le="0.001"}'] == 2
    assert entries['x_bucket{le="0.025"}'] == 3
    assert entries['x_bucket{le="300"}'] == 3
    assert entries['x_bucket{le="+Inf"}'] == entries["x_count"] == histogram.count == 4
    assert entries["x_sum"] == pytest.approx(1000.0215)


def test_times_of_a_request() -> None:
    stats = RequestStats()
    one = Request(0, [3] * 10, FOUR)
    one.arrived_at, one.target, one.cached_tokens = 10.0, 10, 4
    stats.admitted(one, 12.0)
    for now in (13.0, 14.0, 17.0):
        one.token_ids.append(5)
        stats.tokens(one, 1, now)
    stats.admitted(one, 15.0)  # again, after a preemption: it queued once
    one.fail(FinishReason.ABORT, "")
    stats.end(one, 17.0)
    assert (stats.queue.count, stats.queue.sum) == (1, 2.0)
    assert (stats.first_token.count, stats.first_token.sum) == (1, 3.0)
    assert (stats.inter_token.count, stats.inter_token.sum) == (1, 2.0)
    assert (stats.whole.count, stats.whole.sum) == (1, 7.0)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (20, 8, 3)


def test_a_snapshot_of_known_runs(small_llm: LLM) -> None:
    engine = engine_of(small_llm)
    before = engine.snapshot()
    assert all(value == 0 for name, value in before.items() if name != "dsinfer_cache_blocks")
    tokens = [3 + place % 400 for place in range(300)]
    first, second = Request(0, tokens, FOUR), Request(1, tokens, FOUR)
    run(engine, [first])
    run(engine, [second, Request(2, [], FOUR)])
    engine.add_request(Request(3, [5], FOUR))
    seen = engine.snapshot()
    assert seen["dsinfer_prompt_tokens_total"] == 600
    assert seen["dsinfer_cached_tokens_total"] == second.cached_tokens > 0
    assert seen["dsinfer_generated_tokens_total"] == 8
    assert seen['dsinfer_requests_finished_total{reason="length"}'] == 2
    assert seen['dsinfer_requests_finished_total{reason="error"}'] == 1
    assert seen["dsinfer_time_to_first_token_seconds_count"] == 2
    assert seen["dsinfer_inter_token_seconds_count"] == 2
    assert seen['dsinfer_step_tokens_total{kind="prefill"}'] == 600 - second.cached_tokens
    assert seen['dsinfer_step_tokens_total{kind="decode"}'] == 6
    assert (seen["dsinfer_requests_running"], seen["dsinfer_requests_waiting"]) == (0, 1)
    assert (seen["dsinfer_cache_blocks_used"], seen["dsinfer_cache_blocks_stored"]) == (0, 2)
    assert seen["dsinfer_device_wait_seconds_total"] > 0
    assert seen["dsinfer_host_seconds_total"] > 0


def test_the_start_fails_if_a_stored_prefix_is_not_found(
    small_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(small_llm)
    prefix_check.check_prefix_cache(engine)
    monkeypatch.setattr(PrefixCache, "match", lambda self, request: PrefixHit([], 0, None))
    with pytest.raises(RuntimeError, match="found 0 tokens of a prompt of"):
        engine_of(small_llm)
    engine_of(small_llm, "off")


@pytest.mark.parametrize("keep", [14, 127, 128, 129, 140, 300])
@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_the_shortest_prompt_that_hits_has_one_block(mode: str, keep: int) -> None:
    """What the check expects, for every kept suffix."""
    replay = Replay(mode, keep, reach=42)
    shortest = 128 + (keep if mode == "bounded" else 1)
    assert replay.longest_hit(shortest, shortest) == 128
    assert replay.longest_hit(shortest - 1, shortest - 1) == 0


def test_the_grain_is_stated_at_start(small_llm: LLM) -> None:
    """E05."""
    reach = 42 if small_llm.engine.sizes.truncation.keep else 70
    assert prefix_check.describe(engine_of(small_llm)) == (
        "prefix cache: exact, reuses whole blocks of 128 tokens and computes up to "
        f"{reach} tokens before the end of a hit again"
    )
    assert prefix_check.describe(engine_of(small_llm, "off")) == "prefix cache: off"


def test_balance_of_experts() -> None:
    """Mean over busiest, of all layers and steps together."""
    stats = ExpertStats()
    assert stats.balance == 0
    stats.add(np.array([[2, 2], [4, 0]]))
    stats.add(np.array([[0, 0], [1, 3]]))
    assert (stats.pairs, stats.busiest, stats.mean) == (12, 9, 6.0)
    assert stats.entries() == {
        "dsinfer_expert_pairs_total": 12,
        "dsinfer_expert_balance": pytest.approx(2 / 3),
    }


def test_every_computed_row_chooses_experts_in_every_layer(small_llm: LLM) -> None:
    engine = engine_of(small_llm)
    request = Request(
        0, [5, 6, 7, 8, 9], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    )
    engine.add_request(request)
    while engine.has_unfinished_requests():
        engine.step()
    config = engine.config
    rows = 5 + 2  # the last token is not computed
    wanted = rows * config.num_experts_per_tok * config.num_hidden_layers
    assert engine.expert_stats.pairs == wanted
    assert 0 < engine.expert_stats.balance <= 1
