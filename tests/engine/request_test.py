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
    assert finish([7, 8], longest=5).finish_reason is None
    assert finish([7, 8, 9], longest=5).finish_reason is FinishReason.LENGTH


def test_requests_without_a_seed_get_their_own() -> None:
    params = SamplingParams()
    assert Request(0, [0], params).seed != Request(1, [0], params).seed
    assert Request(0, [0], SamplingParams(seed=0)).seed == 0
