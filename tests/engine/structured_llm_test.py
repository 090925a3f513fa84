"""Constrained requests through the whole engine."""

import json
import re
from dataclasses import replace

import noise_model
import pytest
from engine_support import run, same_answer

from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.llm_engine import LLMEngine
from dsinfer_jax.engine.request import FinishReason, Request, SamplingParams
from dsinfer_jax.engine.structured_output import StructuredOutput
from dsinfer_jax.model.numerics import EXACT

pytest.importorskip("llguidance", reason="the grammar extra is not installed")

from dsinfer_jax.engine.grammar_compiler import compiler_for

PATTERN = r"[a-e]{3,6}-[0-9]{2}"
REGEX = SamplingParams(
    max_tokens=40, seed=3, temperature=1.3, structured_output=StructuredOutput("regex", PATTERN)
)
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "s": {"type": "string", "maxLength": 4},
        "b": {"type": "boolean"},
    },
    "required": ["n", "s", "b"],
    "additionalProperties": False,
}
JSON = replace(
    REGEX, max_tokens=200, structured_output=StructuredOutput("json_schema", json.dumps(SCHEMA))
)
PLAIN = SamplingParams(max_tokens=9, temperature=0.8, seed=7, ignore_eos=True)


def test_outputs_satisfy_their_constraints_in_company(tiny_llm: LLM) -> None:
    """Greedy and drawn, beside plain requests, more than there are slots; alone it is the same."""
    kinds = [REGEX, JSON, PLAIN, replace(REGEX, temperature=0), replace(JSON, seed=8)] * 4
    kinds = [replace(kind, seed=place) for place, kind in enumerate(kinds)]
    prompts = [f"Number {place}" for place in range(len(kinds))]
    outputs = tiny_llm.generate(prompts, kinds)
    for output, params in zip(outputs, kinds):
        assert output.error is None
        if params.structured_output is None:
            continue
        assert output.finish_reason is FinishReason.STOP
        assert output.token_ids[-1] == 1
        if params.structured_output.kind == "regex":
            assert re.fullmatch(PATTERN, output.text)
        else:
            value = json.loads(output.text)
            assert list(value) == ["n", "s", "b"]
            assert 0 <= value["n"] <= 99
            assert len(value["s"]) <= 4
    for place in (0, 1, 2, 3, 19):
        (alone,) = tiny_llm.generate(prompts[place], kinds[place])
        assert replace(alone, index=place) == outputs[place]


def test_a_refused_constraint_fails_in_its_place(tiny_llm: LLM) -> None:
    bad = replace(REGEX, structured_output=StructuredOutput("regex", "(?=a)b"))
    outputs = tiny_llm.generate(["a", "b", "c"], [PLAIN, bad, REGEX])
    assert [output.finish_reason for output in outputs] == ["length", "error", "stop"]
    assert (outputs[1].error or "").startswith("the constraint cannot be enforced: ")
    assert outputs[1].token_ids == []


def test_the_grammar_waits_for_its_trigger(tiny_llm: LLM) -> None:
    """Free tokens first, unlike the pattern; constrained ones after the trigger."""
    free = tiny_llm.generate("x", replace(PLAIN, temperature=0, max_tokens=20))[0]
    trigger = tuple(free.token_ids[4:6])
    output = StructuredOutput("regex", PATTERN, trigger)
    (result,) = tiny_llm.generate("x", replace(REGEX, temperature=0, structured_output=output))
    start = next(
        place for place in range(20) if tuple(free.token_ids[place : place + 2]) == trigger
    )
    assert result.token_ids[: start + 2] == free.token_ids[: start + 2]
    assert tiny_llm.codec is not None
    rest = b"".join(map(tiny_llm.codec.token_bytes, result.token_ids[start + 2 : -1]))
    assert re.fullmatch(PATTERN, rest.decode())


def test_an_abort_while_the_grammar_is_made_leaves_nothing(tiny_llm: LLM) -> None:
    engine = tiny_llm.engine
    output = StructuredOutput("regex", "a{1,7}b{1,9}")
    request = Request(0, [0, 5], replace(REGEX, structured_output=output))
    assert engine.add_request(request) == []
    assert engine.has_unfinished_requests()
    engine.abort_request(request)
    assert not engine.has_unfinished_requests()
    assert engine.step() == []


def test_a_deadline_does_not_wait_for_a_grammar(tiny_llm: LLM) -> None:
    engine = tiny_llm.engine
    output = StructuredOutput("regex", "a{1,7}c{1,9}")
    request = Request(0, [0, 5], replace(REGEX, structured_output=output), deadline=0.0)
    assert engine.add_request(request) == []
    (delta,) = engine.step()
    assert delta.finish_reason is FinishReason.DEADLINE
    assert not engine.has_unfinished_requests()


def test_preempted_requests_go_on_in_their_grammars(small_llm: LLM) -> None:
    """Eight grow into a second block where nine are: those that lose their places begin again."""
    config, _, tokenizer = noise_model.load()
    codec = TextCodec(tokenizer, config.bos_token_id)
    compiler = compiler_for(codec, config.vocab_size, [config.eos_token_id])
    old = small_llm.engine
    pattern = r"([a-e]{2}[0-9]){12,15}"
    params = replace(REGEX, max_tokens=60, structured_output=StructuredOutput("regex", pattern))

    def answers(asynchronous: bool, at_once: int) -> list[Request]:
        sizes = replace(old.sizes, asynchronous=asynchronous)
        engine = LLMEngine(
            old.config, old._params, EXACT, sizes, programs=old._programs, grammars=lambda: compiler
        )
        requests = [
            Request(place, [7, *range(20, 130 + place)], replace(params, seed=place))
            for place in range(8)
        ]
        for place in range(0, 8, at_once):
            run(engine, requests[place : place + at_once], limit=50_000)
        return requests

    try:
        alone = answers(asynchronous=False, at_once=1)
        for asynchronous in (False, True):
            together = answers(asynchronous, at_once=8)
            assert sum(request.preemptions for request in together) > 0
            assert all(map(same_answer, together, alone))
        for request in alone:
            text = b"".join(map(codec.token_bytes, request.token_ids[:-1])).decode()
            assert re.fullmatch(pattern, text)
    finally:
        compiler.close()


@pytest.mark.parametrize(("name", "value"), [("min_tokens", 3), ("ignore_eos", True)])
def test_fields_that_contradict_a_grammar_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}; it must be .* grammar decides"):
        replace(REGEX, **{name: value})  # type: ignore[arg-type]


def test_a_closed_model_has_no_process_and_starts_one_when_needed(tiny_llm: LLM) -> None:
    before = tiny_llm.generate("a", REGEX)
    compiler = tiny_llm.engine._pending._compiler
    assert compiler is not None
    process = compiler._worker._process
    assert process is not None
    for _ in range(2):
        tiny_llm.close()
    assert process.poll() is not None
    assert tiny_llm.generate("a", REGEX) == before


def test_without_a_tokenizer_it_is_refused(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_llm.engine._pending, "_make", None)
    (output,) = tiny_llm.generate("a", REGEX)
    assert output.error == "structured_output needs a tokenizer, which the model lacks"
