"""Sampling parameters are checked field by field; a request ends for the right reason."""

import math
from typing import Any

import pytest

from dsinfer_jax.engine.request import FinishReason, Request, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", 2**31),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_p", None),
        ("top_k", -2),
        ("top_k", 2.0),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
        ("ignore_eos", 1),
        ("logprobs", "yes"),
        ("filtered_logprobs", 1),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("n", 0),
        ("n", True),
        ("logit_bias", [1]),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {5: 100.5}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", dict.fromkeys(range(301), 1.0)),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", math.nan),
        ("presence_penalty", -2.1),
        ("presence_penalty", None),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 5),
        ("stop", [5]),
        ("stop_token_ids", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", list(range(16))),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
    ],
)
def test_a_bad_field_is_refused_in_one_sentence(field: str, value: Any) -> None:
    with pytest.raises(ValueError) as error:
        SamplingParams(**{field: value})
    message = str(error.value)
    assert message.startswith(f"{field} is {value!r}; it must be ")
    assert "\n" not in message


def test_neutral_and_extreme_values_are_taken() -> None:
    SamplingParams()
    SamplingParams(temperature=0, top_k=0, top_p=1, seed=2**64 - 1, max_tokens=2**31 - 1)
    SamplingParams(min_p=1, frequency_penalty=-2, presence_penalty=2, repetition_penalty=9)
    SamplingParams(logit_bias={0: -100, 7: 100.0}, top_logprobs=20, min_tokens=16, n=64)


def test_only_what_changes_logits_counts_as_adjusted() -> None:
    neutral = SamplingParams(min_p=0.5, stop="x", stop_token_ids=[3], top_logprobs=3, n=2)
    assert not neutral.adjusted
    for change in ({"min_tokens": 1}, {"logit_bias": {0: 0.0}}, {"presence_penalty": 0.1}):
        assert SamplingParams(**change).adjusted  # type: ignore[arg-type]


def test_answers_draw_with_seeds_of_their_own() -> None:
    params = SamplingParams(n=3, seed=5)
    seeds = [params.answer_seed(5, answer) for answer in range(3)]
    assert seeds[0] == 5
    assert len({*seeds, *(params.answer_seed(6, answer) for answer in range(3))}) == 6


def finish(tokens: list[int], longest: int = 100, **params: Any) -> Request:
    request = Request(0, [0, 5, 6], SamplingParams(**params))
    for token in tokens:
        request.append(token, -1.0, eos_token_id=1, longest=longest)
    return request


def test_reasons_in_their_order() -> None:
    assert finish([7, 8], max_tokens=3).finish_reason is None
    assert finish([7, 8, 9], max_tokens=3).finish_reason is FinishReason.LENGTH
    assert finish([7, 1], max_tokens=3).finish_reason is FinishReason.STOP
    assert finish([7, 8, 1], max_tokens=3).finish_reason is FinishReason.STOP
    assert finish([7, 1], max_tokens=3, ignore_eos=True).finish_reason is None
    stopped = finish([7, 8], max_tokens=3, stop_token_ids=[8])
    assert (stopped.finish_reason, stopped.stop_reason) == (FinishReason.STOP, 8)
    assert finish([7, 8], longest=5).finish_reason is None
    assert finish([7, 8, 9], longest=5).finish_reason is FinishReason.LENGTH


def test_requests_without_a_seed_get_their_own() -> None:
    params = SamplingParams()
    assert Request(0, [0], params).seed != Request(1, [0], params).seed
    assert Request(0, [0], SamplingParams(seed=0)).seed == 0
