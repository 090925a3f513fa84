"""Deltas of several tokens: a stop string ends an answer at its token, wherever that is."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import noise_model
import pytest
from scripted_engine import END, ScriptedEngine

from dsinfer_jax.engine.answers import RunningAnswers, answers_to
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import (
    Delta,
    FinishReason,
    RequestOutput,
    SamplingParams,
)


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    config, _, tokenizer = noise_model.load()
    return TextCodec(tokenizer, config.bos_token_id)


def stream(
    codec: TextCodec, script: Sequence[int], sizes: Sequence[int], params: SamplingParams
) -> Iterator[Delta]:
    engine = ScriptedEngine(script, sizes)
    yield from engine.llm(codec).stream([[0, 5]], params)
    assert not engine.running


def whole(deltas: Iterator[Delta]) -> RequestOutput:
    """The result; what came in deltas must be what it holds."""
    joined: dict[str, Any] = {"token_ids": [], "logprobs": [], "top_logprobs": [], "text": ""}
    outputs: list[RequestOutput] = []
    for delta in deltas:
        assert not outputs, "a delta after the last"
        for name in joined:
            joined[name] = joined[name] + getattr(delta, name)
        if delta.output is not None:
            outputs.append(delta.output)
    (output,) = outputs
    for name, value in joined.items():
        assert getattr(output, name) == value, name
    return output


PARAMS = SamplingParams(max_tokens=30, top_logprobs=1)


@pytest.mark.parametrize("size", range(1, 8))
def test_a_stop_string_within_a_delta_drops_what_follows(codec: TextCodec, size: int) -> None:
    tokens = [codec.encode(character)[1] for character in "ab cd ef"]
    params = replace(PARAMS, stop="cd")
    output = whole(stream(codec, tokens, [size] * 8, params))
    assert (output.text, output.token_ids) == ("ab ", tokens[:5])
    assert output.logprobs == [-float(token) for token in tokens[:5]]
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, "cd")


def test_a_stop_string_wins_over_an_end_that_comes_after_it(codec: TextCodec) -> None:
    tokens = [codec.encode(character)[1] for character in "abcd"]
    for rest, least in (([END], {}), ([], {"max_tokens": 4}), ([], {"stop_token_ids": tokens[3:]})):
        params = replace(PARAMS, stop="bc", **least)
        output = whole(stream(codec, [*tokens, *rest], [6], params))
        assert (output.text, output.token_ids, output.stop_reason) == ("a", tokens[:3], "bc")


def test_an_end_before_a_stop_string_stays(codec: TextCodec) -> None:
    tokens = [codec.encode(character)[1] for character in "ab"]
    output = whole(stream(codec, [*tokens, END], [6], replace(PARAMS, stop="abc")))
    assert (output.text, output.token_ids, output.stop_reason) == ("ab", [*tokens, END], None)


def test_any_cutting_into_deltas_gives_the_same_answer(codec: TextCodec) -> None:
    source = random.Random(3)
    for _ in range(200):
        text = "".join(source.choice("aab 日🙂\n") for _ in range(source.randint(1, 20)))
        script = [*codec.encode(text)[1:], END]
        stops = ["".join(source.choice("ab 日") for _ in range(2)) for _ in range(2)]
        least = source.choice((0, 0, 2))
        params = replace(
            PARAMS, stop=stops, max_tokens=source.randint(3, len(script) + 3), min_tokens=least
        )
        script += [5] * params.max_tokens
        one_by_one = whole(stream(codec, script, [], params))
        for _ in range(4):
            sizes = [source.randint(1, 6) for _ in script]
            assert whole(stream(codec, script, sizes, params)) == one_by_one


def test_an_answer_that_is_ended_from_outside_keeps_what_was_given_out(codec: TextCodec) -> None:
    tokens = [codec.encode(character)[1] for character in "abcd"]
    (answer,) = answers_to([0, 5], replace(PARAMS, stop="bx"), codec, index=4, place=2)
    engine = ScriptedEngine(tokens, [2, 2])
    running = RunningAnswers(cast(LLMEngine, engine))
    assert running.add(answer) == []
    ((_, first),) = running.complete(engine.step())
    assert (first.text, first.index) == ("a", 2)
    engine.step()  # its tokens never reach the caller
    last = answer.end(FinishReason.ERROR, "it broke")
    assert (last.text, last.index, last.token_ids) == ("b", 2, [])
    assert last.output is not None
    assert (last.output.text, last.output.token_ids) == ("ab", tokens[:2])
    assert (last.output.error, last.output.finish_reason) == ("it broke", FinishReason.ERROR)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="stop needs a tokenizer, which the model lacks"):
        answers_to([0], replace(PARAMS, stop="a"), None, index=0, place=0)
