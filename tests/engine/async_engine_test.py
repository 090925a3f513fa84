"""AsyncEngine: what its callers see, and what is left behind; with a model and without."""

import asyncio
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from engine_support import check_empty
from scripted_engine import END, ScriptedEngine

from dsinfer_jax.engine.async_engine import AsyncEngine, EngineUnavailableError
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.request import Delta, FinishReason, RequestOutput, SamplingParams
from dsinfer_jax.engine.structured_output import StructuredOutput

LONG = [*range(2, 500), END]
PARAMS = SamplingParams(max_tokens=10_000, top_logprobs=1)


async def whole(
    engine: AsyncEngine, prompt: Any, params: SamplingParams = PARAMS, **fields: Any
) -> list[RequestOutput]:
    """The outputs of a request; what came in deltas must be what they hold."""
    parts: dict[int, list[Delta]] = {}
    async for delta in engine.generate(prompt, params, **fields):
        parts.setdefault(delta.answer, []).append(delta)
    for deltas in parts.values():
        output = deltas[-1].output
        assert output is not None
        assert all(delta.output is None for delta in deltas[:-1])
        assert joined(deltas, "token_ids") == output.token_ids
        assert "".join(delta.text for delta in deltas) == output.text
        if params.logprobs:
            assert joined(deltas, "logprobs") == output.logprobs
        if params.top_logprobs:
            assert joined(deltas, "top_logprobs") == output.top_logprobs
    return [deltas[-1].output for _, deltas in sorted(parts.items()) if deltas[-1].output]


def joined(deltas: list[Delta], name: str) -> list[Any]:
    return [value for delta in deltas for value in getattr(delta, name)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def served(llm: LLM, use: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    """Use an engine in a loop of its own; afterwards the model must be free."""

    async def main() -> None:
        async with asyncio.timeout(100), AsyncEngine(llm) as engine:
            await use(engine)

    asyncio.run(main())
    llm.claim()
    llm.release()


def test_64_at_a_time_get_the_answers_of_the_offline_call(tiny_llm: LLM) -> None:
    """Texts and ids, greedy and drawn, one answer and two, a stop string, bad prompts."""
    source = random.Random(1)
    prompts: list[Any] = [
        f"Number {place}" if place % 3 else [source.randint(3, 500) for _ in range(place * 3)]
        for place in range(64)
    ]  # place 0 is empty
    prompts[9] = [0, 512]
    params = [
        SamplingParams(
            max_tokens=1 + place % 17, n=1 + place % 2, temperature=place % 3 / 2, seed=place,
            top_logprobs=place % 2, stop=("e", "th") if place % 5 == 0 else (),
        )
        for place in range(64)
    ]  # fmt: skip
    expected = tiny_llm.generate(prompts, params)
    assert sum(output.error is not None for output in expected) == 3

    async def use(engine: AsyncEngine) -> None:
        parts = await asyncio.gather(*map(whole, [engine] * 64, prompts, params))
        given = [replace(one, index=place) for place, part in enumerate(parts) for one in part]
        plain: dict[str, Any] = {"cached_tokens": 0, "why_miss": None}
        assert [replace(one, **plain) for one in given] == [
            replace(one, **plain) for one in expected
        ]

    served(tiny_llm, use)
    check_empty(tiny_llm.engine)


def test_readers_that_leave_early_leave_nothing_behind(tiny_llm: LLM) -> None:
    source = random.Random(2)
    params = SamplingParams(max_tokens=300, ignore_eos=True, n=2)

    async def one(engine: AsyncEngine, place: int) -> str:
        async with aclosing(engine.generate([5] * (1 + 9 * place), params)) as deltas:
            for _ in range(source.randint(1, 5)):
                await anext(deltas)
        return "left"

    async def use(engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(one(engine, place)) for place in range(24)]
        for task in source.sample(tasks, 8):
            await asyncio.sleep(0.02)
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert set(map(str, ends)) <= {"left", ""}
        await until(lambda: not tiny_llm.engine.has_unfinished_requests())
        assert len(await whole(engine, "still there?", replace(params, max_tokens=3))) == 2

    served(tiny_llm, use)
    check_empty(tiny_llm.engine)


def test_constrained_requests_wait_for_their_grammars_beside_others(tiny_llm: LLM) -> None:
    pytest.importorskip("llguidance", reason="the grammar extra is not installed")
    pattern = r"[a-e]{3,6}-[0-9]{2}"
    plain = SamplingParams(max_tokens=5, temperature=0)
    bound = replace(plain, max_tokens=20, structured_output=StructuredOutput("regex", pattern), n=2)

    async def use(engine: AsyncEngine) -> None:
        abandoned = engine.generate("x", bound)
        task = asyncio.create_task(anext(abandoned))
        await asyncio.sleep(0)
        task.cancel()
        first, second = await asyncio.gather(whole(engine, "x", bound), whole(engine, "x", plain))
        assert all(re.fullmatch(pattern, output.text) for output in first)
        assert second == alone
        (refused,) = await whole(
            engine, "x", replace(bound, structured_output=StructuredOutput("regex", "("), n=1)
        )
        assert (refused.error or "").startswith("the constraint cannot be enforced")

    alone = tiny_llm.generate("x", plain)
    served(tiny_llm, use)
    check_empty(tiny_llm.engine)


@pytest.mark.parametrize("way", ["close", "cancel", "abort", "abort from a thread"])
def test_an_abandoned_request_ends_within_a_step(way: str) -> None:
    stepped = threading.Semaphore(0)
    allowed = threading.Semaphore(0)

    def gate(step: int) -> None:
        stepped.release()
        assert allowed.acquire(timeout=20)

    scripted = ScriptedEngine(LONG, before_step=gate)

    async def use(engine: AsyncEngine) -> None:
        deltas = engine.generate([0, 5], request_id="a", params=PARAMS)
        task = asyncio.create_task(anext(deltas))
        allowed.release()
        await task
        await asyncio.to_thread(stepped.acquire)  # step 0
        await asyncio.to_thread(stepped.acquire)  # step 1 is under way
        if way == "close":
            await deltas.aclose()
        elif way == "cancel":
            task = asyncio.create_task(anext(deltas))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif way == "abort":
            engine.abort("a")
        else:
            await asyncio.to_thread(engine.abort, "a")
        await asyncio.sleep(0)  # the loop passes the word on
        allowed.release()
        await until(lambda: not scripted.running)
        assert scripted.steps == 2
        if way.startswith("abort"):
            rest = [delta async for delta in deltas]
            assert rest[-1].output is not None
            assert rest[-1].output.finish_reason is FinishReason.ABORT
            assert rest[-1].output.token_ids == LONG[:2]
        assert [delta async for delta in deltas] == []
        engine.abort("a")  # it has ended: nothing happens

    served(scripted.llm(), use)


def test_an_abort_before_the_prompt_is_encoded_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedEngine(LONG, seconds=0.001)
    llm = scripted.llm()
    encode, encoding = llm.answers_to, threading.Event()

    def slowly(*arguments: Any, **fields: Any) -> Any:
        assert encoding.wait(20)
        return encode(*arguments, **fields)

    monkeypatch.setattr(llm, "answers_to", slowly)

    async def use(engine: AsyncEngine) -> None:
        task = asyncio.create_task(whole(engine, [0, 5], request_id="a"))
        await asyncio.sleep(0.01)
        engine.abort("a")
        await asyncio.sleep(0.01)
        encoding.set()
        (output,) = await task
        assert output.finish_reason is FinishReason.ABORT
        assert len(output.token_ids) <= 1

    served(llm, use)


def test_a_late_reader_holds_one_merged_delta_and_no_step_waits_for_it() -> None:
    scripted = ScriptedEngine(LONG)

    async def use(engine: AsyncEngine) -> None:
        deltas = engine.generate([0, 5], replace(PARAMS, n=3))
        first = await anext(deltas)
        await until(lambda: not engine._readers)  # all is there, and nobody reads
        rest = [delta async for delta in deltas]
        assert len(rest) <= 3
        for delta in rest:
            assert delta.output is not None
            assert delta.output.token_ids == LONG
            before = first.token_ids if delta.answer == first.answer else []
            assert before + delta.token_ids == LONG
            assert delta.output.logprobs is not None
            assert len(delta.logprobs) == len(delta.top_logprobs) == len(delta.token_ids)

    served(scripted.llm(), use)


def test_a_blocked_event_loop_stops_no_step() -> None:
    scripted = ScriptedEngine([5] * 100_000, seconds=0.001)

    async def use(engine: AsyncEngine) -> None:
        deltas = engine.generate([0, 5], PARAMS)
        await anext(deltas)
        before = scripted.steps
        end = time.monotonic() + 20
        while scripted.steps < before + 30:
            assert time.monotonic() < end
            time.sleep(0.001)
        made = scripted.steps - before
        merged = await anext(deltas)
        if len(merged.token_ids) < made - 1:  # the first of them was on its way already
            merged = await anext(deltas)
        assert len(merged.token_ids) >= made - 2
        await deltas.aclose()

    served(scripted.llm(), use)


def test_the_loop_is_woken_once_for_all_requests_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedEngine(LONG[-100:], seconds=0.002)

    async def use(engine: AsyncEngine) -> None:
        loop = asyncio.get_running_loop()
        steps = threading.get_ident(), loop.call_soon_threadsafe
        calls = []

        def counted(*arguments: Any) -> Any:
            if threading.get_ident() != steps[0]:
                calls.append(threading.current_thread().name)
            return steps[1](*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await asyncio.gather(*(whole(engine, [0, 5]) for _ in range(64)))
        assert 0 < calls.count("engine steps") <= scripted.steps

    served(scripted.llm(), use)


def test_nothing_runs_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedEngine(LONG[-3:])

    async def use(engine: AsyncEngine) -> None:
        await whole(engine, [0, 5])
        calls: list[int] = []
        monkeypatch.setattr(scripted, "has_unfinished_requests", lambda: calls.append(1))

        async with asyncio.timeout(20):
            while True:
                calls.clear()
                await asyncio.sleep(0.1)
                if not calls:
                    break
        monkeypatch.undo()
        assert engine.snapshot() == {"steps": scripted.steps}

    served(scripted.llm(), use)


def test_a_failed_step_ends_everybody_with_a_sentence() -> None:
    together: list[int] = []  # steps that all have seen

    def fail(step: int) -> None:
        if len(scripted.running) == 5:
            together.append(step)
        if len(together) == 3:
            raise ArithmeticError("the device\nis gone")

    scripted = ScriptedEngine([5] * 100_000, before_step=fail, seconds=0.001)

    async def use(engine: AsyncEngine) -> None:
        parts = await asyncio.gather(*(whole(engine, [0, 5]) for _ in range(5)))
        sentence = "the engine has failed (ArithmeticError: the device is gone); restart it"
        for (output,) in parts:
            assert (output.finish_reason, output.error) == (FinishReason.ERROR, sentence)
            assert len(output.token_ids) >= 2
        assert engine.unavailable == sentence
        with pytest.raises(EngineUnavailableError, match="the device is gone") as refusal:
            await whole(engine, [0, 5])
        assert isinstance(refusal.value.__cause__, ArithmeticError)
        await engine.drain()
        assert not scripted.running

    served(scripted.llm(), use)


def test_draining_finishes_what_runs_and_takes_no_more() -> None:
    scripted = ScriptedEngine(LONG[-50:], seconds=0.001)

    async def use(engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(whole(engine, [0, 5])) for _ in range(3)]
        unread = engine.generate([0, 5], PARAMS)
        await anext(unread)
        await engine.drain()
        assert not scripted.running
        for (output,) in await asyncio.gather(*tasks):
            assert output.token_ids == LONG[-50:]
        with pytest.raises(EngineUnavailableError, match="the engine is draining"):
            await whole(engine, [0, 5])
        assert [delta async for delta in unread][-1].output is not None
        await engine.drain()

    served(scripted.llm(), use)


def test_closing_ends_what_runs() -> None:
    scripted = ScriptedEngine([5] * 100_000)

    async def main() -> None:
        engine = AsyncEngine(scripted.llm())
        with pytest.raises(EngineUnavailableError, match="was not entered"):
            await whole(engine, [0, 5])
        async with engine:
            tasks = [asyncio.create_task(whole(engine, [0, 5])) for _ in range(3)]
            await until(lambda: len(scripted.running) == 3)
        for (output,) in await asyncio.gather(*tasks):
            assert output.finish_reason is FinishReason.ABORT
            assert output.error == "the engine was closed before the request was done"
        assert not scripted.running
        with pytest.raises(EngineUnavailableError, match="the engine is closed"):
            await whole(engine, [0, 5])
        with pytest.raises(RuntimeError, match="entered once; make another"):
            await engine.__aenter__()

    asyncio.run(main())


def test_a_loop_that_was_closed_over_it_ends_the_thread() -> None:
    scripted = ScriptedEngine([5] * 100_000, seconds=0.001)
    llm = scripted.llm()
    loop = asyncio.new_event_loop()
    engine = AsyncEngine(llm)
    loop.run_until_complete(engine.__aenter__())
    deltas = engine.generate([0, 5], PARAMS)
    loop.run_until_complete(anext(deltas))
    loop.close()
    engine._thread._thread.join(20)
    assert not engine._thread._thread.is_alive()
    assert not scripted.running
    llm.claim()


def test_other_loops_and_other_users_are_refused() -> None:
    scripted = ScriptedEngine(LONG)
    llm = scripted.llm()

    async def use(engine: AsyncEngine) -> None:
        def elsewhere(coroutine: Any) -> None:
            with pytest.raises(RuntimeError, match="belongs to another event loop"):
                asyncio.run(coroutine)

        await asyncio.to_thread(elsewhere, whole(engine, [0, 5]))
        await asyncio.to_thread(elsewhere, engine.drain())
        with pytest.raises(RuntimeError, match="busy with another call"):
            llm.generate([[0, 5]])
        with pytest.raises(RuntimeError, match="busy with another call"):
            await AsyncEngine(llm).__aenter__()
        assert (await whole(engine, [0, 5]))[0].token_ids == LONG

    served(llm, use)
    assert llm.generate([[0, 5]], PARAMS)[0].token_ids == LONG


def test_fields_reach_the_engine_and_numbers_do_not_leave_it() -> None:
    scripted = ScriptedEngine([5] * 100_000)
    fields: dict[str, Any] = {"priority": -1, "deadline": time.monotonic() + 9, "tenant": "x"}

    async def use(engine: AsyncEngine) -> None:
        await whole(engine, [0, 5], replace(PARAMS, max_tokens=2))
        deltas = engine.generate([0, 5], replace(PARAMS, n=2, seed=7), **fields)
        assert (await anext(deltas)).index == 0
        first, second = scripted.running
        for request in (first, second):
            assert {name: getattr(request, name) for name in fields} == fields
        assert first.index == second.index > 0
        assert first.seed == 7 != second.seed
        await deltas.aclose()

    served(scripted.llm(), use)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"params": {"max_tokens": 5}}, "params is .*; it must be SamplingParams"),
        ({"params": SamplingParams(stop="a")}, "stop needs a tokenizer"),
        ({"prompt": "text"}, "the model has no tokenizer"),
        ({"prompt": [0, "x"]}, "a prompt is .*; it must be text or whole numbers"),
        ({"prompt": None}, "a prompt is None; it must be text or whole numbers"),
        ({"priority": 1.5}, "priority is 1.5; it must be a whole number"),
        ({"deadline": float("nan")}, "deadline is nan; it must be a time"),
        ({"tenant": None}, "tenant is None; it must be a text"),
        ({"request_id": 7}, "request_id is 7; it must be a text"),
        ({"request_id": "taken"}, "request_id is 'taken', which another request has"),
    ],
)
def test_bad_fields_are_refused_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    scripted = ScriptedEngine(LONG[-40:], seconds=0.001)

    async def use(engine: AsyncEngine) -> None:
        other = asyncio.create_task(whole(engine, [0, 5], request_id="taken"))
        await asyncio.sleep(0.005)
        with pytest.raises(ValueError, match=sentence):
            await whole(engine, **{"prompt": [0, 5], **fields})
        assert (await other)[0].token_ids == LONG[-40:]
        assert (await whole(engine, [0, 5], request_id="taken"))[0].error is None

    served(scripted.llm(), use)
