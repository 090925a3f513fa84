"""Stop strings, stop tokens, lists, penalties and several answers, through the whole engine."""

from dataclasses import replace

import numpy as np
import pytest

from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.request import FinishReason, RequestOutput, SamplingParams

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def free(tiny_llm: LLM) -> RequestOutput:
    """What the prompt gives without any ending."""
    return tiny_llm.generate(PROMPT, GREEDY)[0]


def test_a_stop_string_ends_the_text_before_it(tiny_llm: LLM, free: RequestOutput) -> None:
    middle = len(free.text) // 2
    stop = free.text[middle : middle + 3]
    outputs = tiny_llm.generate([PROMPT, PROMPT], [replace(GREEDY, stop=stop), GREEDY])
    assert outputs[0].text == free.text[: free.text.index(stop)]
    assert outputs[0].finish_reason is FinishReason.STOP
    assert outputs[0].stop_reason == stop
    assert outputs[0].token_ids == free.token_ids[: len(outputs[0].token_ids)]
    assert outputs[1].text == free.text
    assert outputs[1].stop_reason is None
    assert not tiny_llm.engine.has_unfinished_requests()


def test_streamed_text_never_shows_a_stop_string(tiny_llm: LLM, free: RequestOutput) -> None:
    stop = free.text[-4:]
    deltas = list(tiny_llm.stream(PROMPT, replace(GREEDY, stop=[stop, "never"])))
    assert "".join(delta.text for delta in deltas) == free.text[: free.text.index(stop)]
    assert [delta.output is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]


def test_a_stop_token_ends_unless_it_comes_too_early(tiny_llm: LLM, free: RequestOutput) -> None:
    token = free.token_ids[4]
    first = free.token_ids.index(token)
    (output,) = tiny_llm.generate(PROMPT, replace(GREEDY, stop_token_ids=[token]))
    assert output.token_ids == free.token_ids[: first + 1]
    assert output.stop_reason == token
    assert free.text.startswith(output.text)
    (output,) = tiny_llm.generate(PROMPT, replace(GREEDY, stop_token_ids=[token], min_tokens=12))
    assert len(output.token_ids) == 12
    assert token not in output.token_ids


def test_penalties_and_biases_act_on_their_request_alone(
    tiny_llm: LLM, free: RequestOutput
) -> None:
    """More requests than slots, so that slots are used again; each is as it is alone."""
    penalised = replace(GREEDY, frequency_penalty=2.0, presence_penalty=2.0, logit_bias={7: -9.0})
    forced = replace(GREEDY, logit_bias={99: 100.0})
    repeated = replace(GREEDY, logit_bias={99: 100.0}, repetition_penalty=1e6)
    kinds = [GREEDY, penalised, forced, repeated] * 5
    outputs = tiny_llm.generate([PROMPT] * 20, kinds)
    for place, output in enumerate(outputs):
        assert output.token_ids == outputs[place % 4].token_ids
    assert outputs[0].token_ids == free.token_ids
    assert outputs[2].token_ids == [99] * 12
    assert outputs[3].token_ids.count(99) == 1
    assert 7 not in outputs[1].token_ids
    assert len(set(outputs[1].token_ids)) > len(set(free.token_ids)) or len(
        set(free.token_ids)
    ) == len(free.token_ids)
    for output, params in zip(outputs, kinds[:4]):
        assert tiny_llm.generate(PROMPT, params)[0].token_ids == output.token_ids


def test_lists_come_with_every_token(tiny_llm: LLM, free: RequestOutput) -> None:
    many, none = tiny_llm.generate([PROMPT] * 2, [replace(GREEDY, top_logprobs=3), GREEDY])
    assert none.top_logprobs is None
    assert many.top_logprobs is not None
    assert [len(entries) for entries in many.top_logprobs] == [3] * 12
    for entries, token, logprob in zip(many.top_logprobs, many.token_ids, many.logprobs or []):
        assert entries[0][0] == token
        assert entries[0][1] == pytest.approx(logprob, abs=1e-5)
        assert list(np.diff([value for _, value in entries]) <= 0) == [True, True]


def test_n_answers_stand_in_a_row_and_repeat(tiny_llm: LLM) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.5, n=3, seed=11, ignore_eos=True)
    outputs = tiny_llm.generate([PROMPT, "b"], [params, replace(params, n=1)])
    assert [(output.index, output.answer) for output in outputs] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert len({tuple(output.token_ids) for output in outputs[:3]}) == 3
    assert tiny_llm.generate(PROMPT, params) == outputs[:3]
    assert tiny_llm.generate(PROMPT, replace(params, n=1))[0].token_ids == outputs[0].token_ids


def test_ids_beyond_the_vocabulary_fail_in_their_place(tiny_llm: LLM) -> None:
    outputs = tiny_llm.generate(
        ["a", "b", "c"],
        [replace(GREEDY, logit_bias={512: 1.0}), GREEDY, replace(GREEDY, stop_token_ids=[9999])],
    )
    assert [output.error for output in outputs] == [
        "logit_bias has token 512; ids must be from 0 to 511",
        None,
        "stop_token_ids has token 9999; ids must be from 0 to 511",
    ]


def test_stop_strings_need_a_tokenizer(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_llm, "codec", None)
    with pytest.raises(ValueError, match="stop needs a tokenizer"):
        tiny_llm.generate([[5, 6]], replace(GREEDY, stop="x"))
