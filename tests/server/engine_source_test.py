"""Jobs to requests of an engine and its deltas to chunks, with an engine that plays deltas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest
from live import PATHS, chat, messages, running, until

from dsinfer_jax.engine.request import FinishReason, RequestOutput, RequestTimes
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.server import ServerSettings, create_app
from dsinfer_jax.server.engine_source import EngineSource
from dsinfer_jax.server.mock.source import demo_tokenizer

TOKENIZER = demo_tokenizer()
END = 1
CHAT = "/v1/chat/completions"


@dataclass
class PlayedDelta:
    token_ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    cached_tokens: int = 64
    output: Any = None


class PlayedEngine:
    """Plays deltas; None is a wait without end."""

    def __init__(self, *deltas: PlayedDelta | None) -> None:
        self._deltas = deltas
        self.unavailable: str | None = None
        self.asked: list[tuple[list[int], SamplingParams, dict[str, Any]]] = []
        self.closed = 0
        self.steps = 0.0

    async def generate(
        self, prompt: Any, params: SamplingParams, **fields: Any
    ) -> AsyncGenerator[Any, None]:
        self.asked.append((prompt, params, fields))
        try:
            for delta in self._deltas:
                if delta is None:
                    await asyncio.sleep(60)
                yield delta
        finally:
            self.closed += 1

    def snapshot(self) -> dict[str, float]:
        counts = {
            "requests_running": 2.0,
            "requests_waiting": 2.0,
            "cache_blocks_used": 2.0,
            "cache_blocks": 8.0,
            "prompt_tokens_total": 100.0,
            "cached_tokens_total": 25.0,
            "drafted_tokens_total": 50.0,
            "accepted_tokens_total": 20.0,
            "expert_pairs_total": 80.0,
            "expert_balance": 0.75,
            "host_seconds_total": 4.0,
            "host_hidden_seconds_total": 3.0,
            'steps_total{kind="decode"}': self.steps,
            'step_tokens_total{kind="decode"}': self.steps * 1.5,
            'step_seconds_total{kind="decode"}': self.steps / 4,
        }
        return {f"dsinfer_{name}": value for name, value in counts.items()}

    def serve(self, **settings: Any) -> Any:
        source = EngineSource(self, TOKENIZER)
        settings.setdefault("default_thinking", False)
        app = create_app(
            source.infer, TOKENIZER, ServerSettings(**settings), snapshot=source.snapshot
        )
        return running(app)


def said(text: str, **fields: Any) -> PlayedDelta:
    ids = TOKENIZER.encode(text)
    return PlayedDelta(ids, [-0.25] * len(ids), **fields)


def ended(text: str, reason: FinishReason = FinishReason.STOP) -> PlayedDelta:
    """A last delta: the token that ends a sequence is among its tokens."""
    delta = said(text, finish_reason=reason)
    if reason is FinishReason.STOP:
        delta.token_ids = [*delta.token_ids, END]
        delta.logprobs = [*delta.logprobs, -0.5]
    return delta


def test_an_answer() -> None:
    engine = PlayedEngine(said("Hel"), ended("lo"))
    with engine.serve() as live:
        body = live.post(CHAT, chat()).json()
    assert body["choices"][0]["message"]["content"] == "Hello"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert body["usage"]["prompt_tokens"] == len(engine.asked[0][0])
    tokens = len(TOKENIZER.encode("Hel")) + len(TOKENIZER.encode("lo"))
    assert body["usage"]["completion_tokens"] == tokens  # without the one that ends


def result(times: RequestTimes | None) -> RequestOutput:
    """What the last delta of a failed request brings."""
    return RequestOutput(0, [1], [], "", FinishReason.ERROR, None, times=times)


def test_the_last_token_of_a_cut_answer_stays() -> None:
    with PlayedEngine(ended("Hello", FinishReason.LENGTH)).serve() as live:
        body = live.post("/v1/messages", messages()).json()
    assert body["content"][0]["text"] == "Hello"
    assert body["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("dialect", PATHS)
def test_an_answer_that_is_cut_within_a_character_keeps_the_rest(dialect: str) -> None:
    ids = TOKENIZER.encode("Hello 世")
    cut = PlayedDelta(ids[:-1], [-0.25] * (len(ids) - 1), finish_reason=FinishReason.LENGTH)
    path, make = PATHS[dialect]
    with PlayedEngine(cut).serve() as live:
        body = live.post(path, make()).body.decode()
    assert '"Hello ' in body


def test_what_the_engine_is_asked() -> None:
    engine = PlayedEngine(ended("a"))
    with engine.serve(api_keys={"ann": "k"}) as live:
        body = chat(n=2, seed=5, max_tokens=7, temperature=0.5)
        live.post(CHAT, body, x_api_key="k", x_dsinfer_priority="3")
    (_, first, fields), (_, second, _) = sorted(engine.asked, key=lambda one: one[2]["request_id"])
    assert (first.max_tokens, first.temperature, first.n, first.seed) == (7, 0.5, 1, 5)
    assert second.seed == first.answer_seed(5, 1) != 5
    assert first.logprobs is False
    assert first.structured_output is None
    assert fields["priority"] == 3
    assert fields["tenant"] == "ann"
    assert fields["request_id"].startswith("chatcmpl-")


@pytest.mark.parametrize("thinking", [False, True])
def test_constraints(thinking: bool) -> None:
    engine = PlayedEngine(ended("</think>{}"))
    schema = {"type": "object"}
    json_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    mode = {"type": "enabled" if thinking else "disabled"}
    with engine.serve() as live:
        live.post(CHAT, chat(response_format=json_format, thinking=mode))
        live.post(CHAT, chat(tools=[tool], thinking=mode))
        if not thinking:
            live.post(CHAT, chat(tools=[tool], thinking=mode, tool_choice="required"))
    outputs = [params.structured_output for _, params, _ in engine.asked]
    formatted, tools = outputs[:2]
    assert formatted is not None
    assert tools is not None
    assert formatted.kind == "json_schema"
    assert json.loads(formatted.source) == schema
    end = TOKENIZER.added_token_id("</think>")
    assert formatted.trigger_token_ids == ((end,) if thinking else ())
    assert tools.kind == "tool_calls"
    assert tools.trigger_token_ids == (TOKENIZER.added_token_id("｜DSML｜"),)
    if not thinking:
        required = outputs[2]
        assert required is not None
        assert required.after_marker


def test_log_probabilities() -> None:
    delta = ended("a")
    delta.top_logprobs = [[(0, -1.0), (2, -2.0)] for _ in delta.token_ids]
    with PlayedEngine(delta).serve() as live:
        body = live.post(CHAT, chat(logprobs=True, top_logprobs=2)).json()
    entry = body["choices"][0]["logprobs"]["content"][0]
    assert entry["logprob"] == -0.25
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (FinishReason.PROMPT_TOO_LONG, 400),
        (FinishReason.DEADLINE, 504),
        (FinishReason.ABORT, 503),
        (FinishReason.ERROR, 500),
    ],
)
@pytest.mark.parametrize("dialect", PATHS)
def test_failures(dialect: str, reason: FinishReason, status: int) -> None:
    times = RequestTimes(queue=0.1, first_token=None)
    path, make = PATHS[dialect]
    failed = PlayedDelta([], finish_reason=reason, error="This is why.", output=result(times))
    with PlayedEngine(failed).serve() as live:
        reply = live.post(path, make(stream=True))
    assert reply.status == status
    assert reply.json()["error"]["message"] == "This is why."


def test_what_the_engine_refuses_is_the_fault_of_the_request() -> None:
    refused = PlayedDelta(
        [], finish_reason=FinishReason.ERROR, error="No such grammar.", output=result(None)
    )
    with PlayedEngine(refused).serve() as live:
        reply = live.post(CHAT, chat())
    assert reply.status == 400
    assert reply.json()["error"]["message"] == "No such grammar."


def test_an_engine_that_takes_nothing() -> None:
    engine = PlayedEngine()
    engine.unavailable = "it has failed"
    with engine.serve() as live:
        reply = live.post(CHAT, chat())
        health = live.get("/health")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert "it has failed" in reply.json()["error"]["message"]
    assert health.status == 503
    assert health.json()["reason"] == "it has failed"


def test_an_engine_that_fails_when_it_is_asked() -> None:
    class FailingEngine(PlayedEngine):
        async def generate(self, *arguments: Any, **fields: Any) -> AsyncGenerator[Any, None]:
            self.unavailable = "it has just failed"
            raise RuntimeError("unavailable")
            yield

    with FailingEngine().serve() as live:
        reply = live.post(CHAT, chat())
    assert reply.status == 503
    assert "it has just failed" in reply.json()["error"]["message"]


def test_what_only_the_engine_refuses() -> None:
    with PlayedEngine().serve() as live:
        reply = live.post(CHAT, chat(), x_dsinfer_priority="high")
        assert reply.status == 400
        assert "priority" in reply.json()["error"]["message"]


def test_a_client_that_leaves_closes_the_request() -> None:
    engine = PlayedEngine(said("a"), None)
    with engine.serve() as live:
        connection = live.connection()
        connection.request("POST", CHAT, json.dumps(chat(stream=True)))
        response = connection.getresponse()
        response.readline()
        response.close()
        connection.close()
        until(lambda: engine.closed == 1, seconds=2)


def test_figures() -> None:
    engine = PlayedEngine()
    with engine.serve() as live:
        engine.steps = 4
        source = live.get("/status.json").json()["source"]
        page = live.get("/metrics").body
    assert source == {
        "name": "engine",
        "running": 2,
        "waiting": 2,
        "cache_used": 0.25,
        "cache_hits": 0.25,
        "acceptance": 0.4,
        "balance": 0.75,
        "hidden_host_time": 0.75,
        "steps": [{"kind": "decode", "steps": 4, "tokens": 1.5, "seconds": 0.25}],
    }
    assert b"dsinfer_prompt_tokens_total 100.0" in page
