"""Many clients of a served model at once, and how requests and servers of it end."""

from __future__ import annotations

import json
import math
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from engine_server import GREEDY, SPEAKER, body_of, serving
from events import ends_well, errors_of, read_events
from live import until
from server_process import process

from dsinfer_jax.engine.request import RequestOutput
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.recipe import InferenceChunk, InferenceFinishReason, PromptUsage
from dsinfer_jax.server import ServerSettings
from dsinfer_jax.server.conform.error_laws import check_error
from dsinfer_jax.server.conform.speakers import Question
from dsinfer_jax.server.dialects import DIALECTS
from dsinfer_jax.server.engine_app import read_tokenizer
from dsinfer_jax.server.prepare import Asker, Prepared, Preparer

STREAMS = 64
TOKENS = 10
DIALECT = {dialect.name: dialect for dialect in DIALECTS}
LONG = Question("Go on.", limit=3_000)


def asked(number: int) -> tuple[str, Question, SamplingParams]:
    """One of many requests, and what it means to the engine."""
    dialect, seeded = (("chat", False), ("chat", True), ("responses", False), ("messages", False))[
        number % 4
    ]
    text = f"Question {number}: " + "and why? " * (number % 7 * 8)
    more: dict[str, Any] = {"temperature": 0.75, "seed": number} if seeded else GREEDY
    params = SamplingParams(
        temperature=more["temperature"],
        seed=more.get("seed"),
        max_tokens=TOKENS,
    )
    if dialect == "chat":
        more = {**more, "logprobs": True}
    return dialect, Question(text, stream=True, limit=TOKENS, more=more), params


def offline(llm: Any) -> list[dict[str, Any]]:
    """What `LLM.generate` says to all of them, as each dialect writes it."""
    preparer = Preparer(ServerSettings(context_limit=4_096), read_tokenizer(llm.codec.path))
    prepared, params = [], []
    for number in range(STREAMS):
        name, question, chosen = asked(number)
        raw = json.dumps(body_of(SPEAKER[name], question)).encode()
        prepared.append(preparer.prepare(DIALECT[name], raw, Asker("", math.inf, {}), None))
        params.append(chosen)
    outputs = llm.generate([one.jobs[0].prompt_ids for one in prepared], params)
    end = llm.config.eos_token_id
    return [written(one, output, end) for one, output in zip(prepared, outputs)]


def written(prepared: Prepared, output: RequestOutput, end: int) -> dict[str, Any]:
    """A result of the engine as the body of a response."""
    ids, logprobs = output.token_ids, output.logprobs
    assert logprobs is not None
    stopped = ids[-1] == end
    if stopped:
        ids = ids[:-1]
    reason = InferenceFinishReason.Stop if stopped else InferenceFinishReason.Length
    usage = PromptUsage(prompt_tokens=len(output.prompt_token_ids), prompt_cache_hit_tokens=0)
    with_logprobs = prepared.dialect.name == "chat"
    whole = prepared.dialect.response(prepared.id, prepared.model, 0, usage.prompt_tokens, 0)
    for chunk in (
        InferenceChunk.ready(prompt_usage=usage),
        *(
            InferenceChunk.tokens([id], [(own, [])] if with_logprobs else None)
            for id, own in zip(ids, logprobs)
        ),
        InferenceChunk.finish(reason),
    ):
        for event in prepared.processors[0].push(chunk):
            whole.accumulate(event)
    return json.loads(whole.to_json())


def test_many_streams_are_the_offline_results(noise_llm: Any) -> None:
    """64 at once, in all dialects, greedy and seeded; log-probabilities to the last digit."""
    expected = offline(noise_llm)
    with serving(noise_llm) as served, ThreadPoolExecutor(STREAMS) as clients:

        def client(number: int) -> Any:
            dialect, question, _ = asked(number)
            return served.send(dialect, question)

        replies = list(clients.map(client, range(STREAMS)))
    texts = set()
    for number, (reply, whole) in enumerate(zip(replies, expected)):
        dialect, _, _ = asked(number)
        speaker = SPEAKER[dialect]
        outcome, wanted = speaker.read(reply), speaker.read_body(whole)
        assert (outcome.text, outcome.finish) == (wanted.text, wanted.finish), number
        assert outcome.usage is not None
        assert wanted.usage is not None
        assert outcome.usage.output == wanted.usage.output
        if dialect == "chat":
            entries = whole["choices"][0]["logprobs"]["content"]
            assert logprobs_of(reply.events) == entries
        texts.add(outcome.text)
    assert len(texts) > STREAMS / 2


def logprobs_of(events: list[Any]) -> list[Any]:
    """All entries of a stream of chat."""
    found = []
    for event in events[:-1]:
        for choice in event.json()["choices"]:
            found += (choice["logprobs"] or {}).get("content") or []
    return found


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("dialect", SPEAKER)
def test_a_request_ends_at_its_deadline(noise_llm: Any, dialect: str) -> None:
    with serving(noise_llm, request_timeout=0.5) as served:
        reply = served.send(dialect, LONG)
        assert reply.status == 504
        assert check_error(SPEAKER[dialect], reply) == "The request took longer than 0.5 seconds."
        body = {**body_of(SPEAKER[dialect], LONG), "stream": True}
        raw = served.live.post(SPEAKER[dialect].path, body).body
        (message,) = errors_of(dialect, read_events(raw))
        assert "0.5 seconds" in message
        until(lambda: served.busy() == 0, seconds=2)


@pytest.mark.usefixtures("endless")
def test_a_server_that_ends_ends_its_requests(noise_llm: Any) -> None:
    """With errors of the dialects; afterwards the model is free."""
    with ThreadPoolExecutor(12) as clients:
        with serving(noise_llm, drain_timeout=0.3) as served:
            replies = [
                clients.submit(served.send, dialect, replace(LONG, stream=stream))
                for dialect in SPEAKER
                for stream in (False, True) * 2
            ]
            until(lambda: served.busy() == len(replies))
            health = served.live.get("/health").status
        for number, reply in enumerate(one.result() for one in replies):
            dialect = list(SPEAKER)[number // 4]
            if reply.is_stream:
                written = [(event.name, event.data) for event in reply.events]
                assert "shutting down" in str(written[-1])
            else:
                assert reply.status == 503
                assert "shutting down" in check_error(SPEAKER[dialect], reply)
    assert health == 200
    assert noise_llm.generate([[0, 5]], SamplingParams(max_tokens=2))[0].error is None


def test_a_step_that_fails_makes_the_server_unhealthy(
    noise_llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(noise_llm) as served:
        assert served.live.get("/health").status == 200
        with monkeypatch.context() as patch:
            patch.setattr(noise_llm.engine, "step", fails)
            replies = [served.send(dialect, Question()) for dialect in SPEAKER]
        assert [reply.status for reply in replies] == [503, 503, 503]
        for dialect, reply in zip(SPEAKER, replies):
            assert "memory" in check_error(SPEAKER[dialect], reply)
        health = served.live.get("/health")
        assert health.status == 503
        assert "memory" in health.json()["reason"]
        assert "memory" in served.live.get("/status.json").json()["source"]["unavailable"]


def fails() -> Any:
    raise MemoryError("the device has no memory left")


@pytest.mark.slow  # compiles the programs of the command line
def test_the_command_line_serves_a_model_and_lets_its_requests_end() -> None:
    """SIGTERM while more requests run and wait than there are slots: all are answered."""
    options = ("--numerics", "exact", "--cache-dir", "off", "--drain-timeout", "60")
    with process(*options, mock=False) as server, ThreadPoolExecutor(24) as clients:
        steps = [line["what"] for line in server.lines if line["message"] == "starting"]
        assert any("decode" in step for step in steps)
        answers = [
            clients.submit(server.ask, dialect, "Go on.", number % 2 == 0)
            for number, dialect in enumerate(list(SPEAKER) * 8)
        ]
        until(lambda: server.arrived() >= len(answers), seconds=30)
        assert server.end() in (0, -signal.SIGTERM)
        for number, (status, body) in enumerate(one.result() for one in answers):
            assert status == 200, body
            if number % 2 == 0:
                assert ends_well(list(SPEAKER)[number % 3], read_events(body))
