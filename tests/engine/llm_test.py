"""The offline API on the tiny model: alone and in company, endings, failures, repeatability."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsinfer_jax import _jax
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.request import FinishReason, RequestOutput, SamplingParams

LENGTHS = (1, 2, 7, 31, 33, 127, 129, 200, 300, 600)
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((seed, length)).integers(3, 512, length).tolist()


def same(one: RequestOutput, other: RequestOutput) -> bool:
    """Equal to the last bit, apart from the place in the call and what the cache had."""
    plain = {"index": 0, "cached_tokens": 0, "why_miss": None}
    return replace(one, **plain) == replace(other, **plain)


def test_company_changes_nothing(tiny_llm: LLM) -> None:
    """Greedy and seeded requests of many lengths: more than there are slots, and one by one."""
    prompts = [prompt(length) for length in LENGTHS]
    params = [
        replace(GREEDY, temperature=0.9 * (place % 2), top_p=0.9, seed=place)
        for place in range(len(prompts))
    ]
    together = tiny_llm.generate(prompts, params)
    assert [output.index for output in together] == list(range(len(prompts)))
    assert [len(output.token_ids) for output in together] == [6] * len(prompts)
    for output, ids, chosen in zip(together, prompts, params):
        (alone,) = tiny_llm.generate(ids, chosen)
        assert same(alone, output), f"prompt of {len(ids)} tokens"


def test_a_seed_repeats_and_no_seed_does_not(tiny_llm: LLM) -> None:
    ids = prompt(9)
    hot = SamplingParams(max_tokens=12, temperature=2.0, ignore_eos=True)
    first, second = tiny_llm.generate([ids, ids], hot)
    assert first.token_ids != second.token_ids
    seeded = replace(hot, seed=5)
    first, second = tiny_llm.generate([ids, ids], seeded)
    assert same(first, second)
    assert same(tiny_llm.generate(ids, seeded)[0], first)
    assert tiny_llm.generate(ids, replace(hot, seed=6))[0].token_ids != first.token_ids


def test_the_end_token_ends_unless_ignored(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    (free,) = tiny_llm.generate("The end", GREEDY)
    assert free.finish_reason is FinishReason.LENGTH
    end = free.token_ids[3]
    first = free.token_ids.index(end)
    config = replace(tiny_llm.engine.config, eos_token_id=end)
    monkeypatch.setattr(tiny_llm.engine, "config", config)
    (ended,) = tiny_llm.generate("The end", replace(GREEDY, ignore_eos=False))
    assert ended.finish_reason is FinishReason.STOP
    assert ended.token_ids == free.token_ids[: first + 1]
    assert ended.logprobs == free.logprobs[: first + 1]
    assert free.text.startswith(ended.text)
    assert tiny_llm.generate("The end", GREEDY)[0].token_ids == free.token_ids


def test_a_sequence_ends_at_the_longest_length(tiny_llm: LLM) -> None:
    longest = tiny_llm.engine.sizes.max_model_len
    (output,) = tiny_llm.generate(prompt(longest - 2), replace(GREEDY, max_tokens=50))
    assert output.finish_reason is FinishReason.LENGTH
    assert len(output.token_ids) == 3  # the newest token is not computed: one more than the limit


def test_bad_prompts_fail_in_their_place(tiny_llm: LLM) -> None:
    prompts = [prompt(5), prompt(4097), [], prompt(7), [0, 512], [0, -1]]
    outputs = tiny_llm.generate(prompts, GREEDY)
    assert [output.finish_reason for output in outputs] == [
        "length", "prompt_length_exceeded", "error", "length", "error", "error",
    ]  # fmt: skip
    assert [output.error for output in outputs] == [
        None,
        "the prompt has 4097 tokens; max_model_len allows 4096",
        "the prompt is empty; give at least one token",
        None,
        "token 1 of the prompt is 512; ids must be from 0 to 511",
        "token 1 of the prompt is -1; ids must be from 0 to 511",
    ]
    assert all(not output.token_ids for output in outputs if output.error)
    for place in (0, 3):
        assert same(outputs[place], tiny_llm.generate(prompts[place], GREEDY)[0])


def test_a_row_that_is_not_finite_fails_alone(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token 400 has a broken embedding: neighbours and later users of its blocks are whole."""
    good = [[token for token in prompt(length) if token != 400] for length in (5, 40, 300)]
    later = [[token for token in prompt(300, seed) if token != 400] for seed in range(8)]
    expected, expected_later = tiny_llm.generate(good, GREEDY), tiny_llm.generate(later, GREEDY)
    bad = [*prompt(200), 400, *prompt(150, seed=1)]
    params = tiny_llm.engine._params
    broken = replace(params, embed=params.embed.at[400].set(jnp.nan))
    monkeypatch.setattr(tiny_llm.engine, "_params", broken)
    outputs = tiny_llm.generate([good[0], bad, good[1], bad, good[2]], GREEDY)
    for place in (1, 3):
        assert outputs[place].finish_reason is FinishReason.ERROR
        assert "is not finite" in (outputs[place].error or "")
    for place, output in zip((0, 2, 4), expected):
        assert same(outputs[place], output)
    assert all(map(same, tiny_llm.generate(later, GREEDY), expected_later))


def test_nothing_compiles_and_nothing_sneaks_to_the_device_between_steps(tiny_llm: LLM) -> None:
    events = _jax.compile_events()
    before = events.programs
    with jax.transfer_guard("disallow"):
        tiny_llm.generate([prompt(3), prompt(400)], replace(GREEDY, temperature=0.5, top_k=9))
    assert events.programs == before


def test_streamed_pieces_make_the_whole(tiny_llm: LLM) -> None:
    prompts = ["One", "Two sentences. Here.", ""]
    whole = tiny_llm.generate(prompts, replace(GREEDY, max_tokens=20))
    tokens: list[list[int]] = [[], [], []]
    texts = ["", "", ""]
    outputs: list[RequestOutput | None] = [None, None, None]
    for delta in tiny_llm.stream(prompts, replace(GREEDY, max_tokens=20)):
        assert outputs[delta.index] is None, "a delta after the last"
        tokens[delta.index] += delta.token_ids
        texts[delta.index] += delta.text
        outputs[delta.index] = delta.output
    assert outputs == whole
    assert tokens == [output.token_ids for output in whole]
    assert texts == [output.text for output in whole]


def test_an_abandoned_stream_frees_everything(tiny_llm: LLM) -> None:
    stream = tiny_llm.stream([prompt(50), prompt(500), *[prompt(9)] * 20], GREEDY)
    for _ in range(3):
        next(stream)
    with pytest.raises(RuntimeError, match="busy with another call"):
        tiny_llm.generate("a")
    stream.close()
    assert not tiny_llm.engine.has_unfinished_requests()
    assert not tiny_llm.generate(prompt(20), GREEDY)[0].error


def test_donated_cache_is_written_in_place(tiny_llm: LLM) -> None:
    for program in (
        *tiny_llm.engine._programs._prefill.values(),
        *tiny_llm.engine._programs._decode.values(),
    ):
        aliased = program.compiled.memory_analysis().alias_size_in_bytes
        assert aliased >= tiny_llm.engine.memory.cache


def test_calls_that_make_no_sense_are_refused(tiny_llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 entries for 1 prompts"):
        tiny_llm.generate(["a"], [GREEDY, GREEDY])
    assert tiny_llm.generate([], GREEDY) == []


def test_logprobs_are_left_out_when_not_wanted(tiny_llm: LLM) -> None:
    (output,) = tiny_llm.generate("a", replace(GREEDY, logprobs=False))
    assert output.logprobs is None


def test_the_report_names_every_program(tiny_llm: LLM) -> None:
    report = tiny_llm.engine.program_report
    assert [entry.name for entry in report] == ["prefill 256", "decode 8 x 1"]
    assert all(entry.name in str(entry) and entry.compile_seconds > 0 for entry in report)


def test_a_kept_suffix_answers_every_prompt(tiny_llm: LLM) -> None:
    """Compact truncation: answers for prompts of all sizes, alone as in company.

    What fits the kept suffix is unchanged; longer prompts are approximated.
    """
    engine = tiny_llm.engine
    llm = LLM(engine.config, engine._params, numerics="exact", keep_tokens=14, prefill_rows=(256,))
    prompts = [prompt(length) for length in LENGTHS]
    kept, full = llm.generate(prompts, GREEDY), tiny_llm.generate(prompts, GREEDY)
    for ids, one, other in zip(prompts, kept, full):
        assert one.error is None
        assert len(one.token_ids) == 6
        if len(ids) <= 14:
            assert one.token_ids == other.token_ids
        assert same(one, llm.generate(ids, GREEDY)[0])
    assert kept[-1].logprobs != full[-1].logprobs
