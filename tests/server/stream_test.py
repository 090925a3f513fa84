"""Event streams: order, pings, clients that leave or do not read, deadlines, sources that fail."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from events import ends_well, errors_of, read_events
from live import PATHS, Live, chat, messages, responses, running, until

from dsinfer_jax.recipe import InferenceChunk, InferenceFinishReason, PromptUsage
from dsinfer_jax.server import InferenceJob, ServerSettings, SourceError, create_app
from dsinfer_jax.server.mock.source import demo_tokenizer

DIALECTS = list(PATHS)
STOP = InferenceChunk.finish(InferenceFinishReason.Stop)
TOKENIZER = demo_tokenizer()


class Source:
    """Plays a list of chunks, waits (numbers) and exceptions; counts what runs and what ended."""

    def __init__(self, *steps: Any) -> None:
        self._steps = steps
        self.running = 0
        self.ended = 0
        self.given = 0
        self.jobs: list[InferenceJob] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    def tasks(self) -> int:
        """Tasks of the server's loop."""
        assert self.loop is not None
        return len(asyncio.all_tasks(self.loop))

    async def infer(self, job: InferenceJob) -> AsyncGenerator[InferenceChunk, None]:
        self.loop = asyncio.get_running_loop()
        self.jobs.append(job)
        self.running += 1
        try:
            for step in self._steps:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, Exception):
                    raise step
                else:
                    self.given += 1
                    yield step
        finally:
            self.running -= 1
            self.ended += 1

    def serve(self, **settings: Any) -> Any:
        settings.setdefault("default_thinking", False)
        return running(create_app(self.infer, TOKENIZER, ServerSettings(**settings)))


def text(content: str, tokens: int = 1) -> InferenceChunk:
    return InferenceChunk.text(content, tokens)


READY = InferenceChunk.ready(prompt_usage=PromptUsage(prompt_tokens=9, prompt_cache_hit_tokens=4))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_adds_up_to_the_whole_answer(mock: Live, dialect: str) -> None:
    path, make = PATHS[dialect]
    whole = mock.post(path, make("Grüße, 世界! 👩‍👩‍👧")).json()
    reply = mock.post(path, make("Grüße, 世界! 👩‍👩‍👧", stream=True))
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = read_events(reply.body)
    assert ends_well(dialect, events)
    datas = [event.json() for event in events if event.data and event.data != "[DONE]"]
    assert not errors_of(dialect, events)
    if dialect == "chat":
        deltas = [data["choices"][0]["delta"] for data in datas]
        joined = "".join(delta.get("content") or "" for delta in deltas)
        assert joined == whole["choices"][0]["message"]["content"]
        assert datas[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    elif dialect == "responses":
        assert [data["sequence_number"] for data in datas] == list(range(len(datas)))
        assert [event.name for event in events] == [data["type"] for data in datas]
        final = datas[-1]["response"]["output"]
        assert [item["content"][0]["text"] for item in final] == [
            item["content"][0]["text"] for item in whole["output"]
        ]
    else:
        assert [event.name for event in events] == [data["type"] for data in datas]
        joined = "".join(data.get("delta", {}).get("text", "") for data in datas)
        assert joined == whole["content"][1]["text"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("steps", [(READY, 1.5, text("a"), STOP), (READY, text("a"), 1.5, STOP)])
def test_a_quiet_stream_gets_pings(dialect: str, steps: tuple[Any, ...]) -> None:
    path, make = PATHS[dialect]
    with Source(*steps).serve(ping_interval=0.2) as live:
        events = read_events(live.post(path, make(stream=True)).body)
    pings = [event for event in events if event.comment == "ping" or event.name == "ping"]
    assert len(pings) >= 3
    if dialect == "messages":
        assert events[0].name == "message_start"
        assert all(event.comment is None for event in events)
    assert ends_well(dialect, events)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_source(dialect: str, stream: bool) -> None:
    path, make = PATHS[dialect]
    source = Source(READY, text("a"), 60.0)
    with source.serve() as live:
        connection = live.connection()
        connection.request("POST", path, json.dumps(make(stream=stream)))
        until(lambda: source.running == 1 and source.given == 2)
        connection.close() if not stream else _leave(connection)
        until(lambda: source.ended == 1, seconds=1)
        until(lambda: live.app.state.admission.running == 0, seconds=1)
        service = live.app.state.service
        until(lambda: service.metrics.requests[dialect, "client_gone", 499] == 1)
        until(lambda: live.app.state.admission.body_bytes == 0)


def _leave(connection: http.client.HTTPConnection) -> None:
    response = connection.getresponse()
    assert response.readline()
    response.close()
    connection.close()


def test_a_client_that_leaves_while_it_sends() -> None:
    with Source(READY).serve() as live:
        for _ in range(20):
            client = socket.create_connection(("127.0.0.1", live.port))
            client.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 900\r\n\r\n{")
            client.close()
        service = live.app.state.service
        until(lambda: service.metrics.requests["messages", "client_gone", 499] == 20)
        until(lambda: service.admission.body_bytes == 0)


def test_a_slow_reader_holds_its_source_back_and_is_given_up() -> None:
    steps = [READY, *[text("x" * 10_000)] * 10_000, STOP]  # 100 MB if nobody held it back
    source = Source(*steps)
    with source.serve(write_timeout=0.5) as live:
        connection = live.connection()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)))
        until(lambda: source.running == 1)
        time.sleep(0.2)
        given = source.given
        time.sleep(0.2)
        assert source.given == given < 2_000  # what the socket buffers hold
        until(lambda: source.ended == 1, seconds=3)
        service = live.app.state.service
        until(lambda: service.metrics.requests["chat", "client_gone", 499] == 1)
        connection.close()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_past_its_deadline(dialect: str, stream: bool) -> None:
    path, make = PATHS[dialect]
    source = Source(READY, text("a"), 60.0)
    with source.serve(request_timeout=0.3) as live:
        reply = live.post(path, make(stream=stream))
        message = "The request took longer than 0.3 seconds."
        if stream:
            assert reply.status == 200
            events = read_events(reply.body)
            assert errors_of(dialect, events) == [message]
            assert not ends_well(dialect, events)
        else:
            assert reply.status == 504
            assert message in reply.body.decode()
        assert source.ended == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_source_that_stalls(dialect: str, stream: bool) -> None:
    path, make = PATHS[dialect]
    source = Source(READY, text("a"), 60.0)
    with source.serve(stall_timeout=0.2) as live:
        reply = live.post(path, make(stream=stream))
        message = "The model gave no output for 0.2 seconds."
        if stream:
            assert errors_of(dialect, read_events(reply.body)) == [message]
        else:
            assert reply.status == 504
            assert message in reply.body.decode()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((), "The model ended without any output."),
        ((READY,), "The model ended without any output."),
        ((READY, STOP), "The model ended without any output."),
        ((READY, text("", 0), STOP), "The model ended without any output."),
        ((SourceError("No memory.", 503, 2.5),), "No memory."),
        ((READY, SourceError("No memory.", 503, 2.5)), "No memory."),
    ],
)
def test_a_source_that_gives_nothing_is_an_error_with_a_status(
    dialect: str, stream: bool, steps: tuple[Any, ...], message: str
) -> None:
    path, make = PATHS[dialect]
    with Source(*steps).serve() as live:
        reply = live.post(path, make(stream=stream))
    assert reply.json()["error"]["message"] == message
    if message == "No memory.":
        assert (reply.status, reply.headers["retry-after"]) == (503, "3")
    else:
        assert reply.status == 502


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((READY, text("a")), "The model's output ended before it was complete."),
        ((READY, text("a"), SourceError("No memory.")), "No memory."),
    ],
)
def test_a_source_that_fails_later_ends_the_stream_with_an_error(
    dialect: str, steps: tuple[Any, ...], message: str
) -> None:
    path, make = PATHS[dialect]
    with Source(*steps).serve() as live:
        reply = live.post(path, make(stream=True))
        whole = live.post(path, make())
    assert reply.status == 200
    events = read_events(reply.body)
    assert errors_of(dialect, events) == [message]
    assert not ends_well(dialect, events)
    assert whole.status in (500, 502)
    assert whole.json()["error"]["message"] == message
    if dialect == "responses":
        numbers = [event.json()["sequence_number"] for event in events]
        assert numbers == list(range(len(events)))
        assert events[-1].json()["response"]["id"] == events[0].json()["response"]["id"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_comes_after_the_first_finish_is_not_sent(dialect: str) -> None:
    path, make = PATHS[dialect]
    source = Source(READY, text("a"), STOP, text("b"), STOP)
    with source.serve() as live:
        events = read_events(live.post(path, make(stream=True)).body)
    assert ends_well(dialect, events)
    assert '"b"' not in "".join(event.data or "" for event in events)
    assert source.given == 3
    assert source.ended == 1


def test_a_stop_sequence_stops_the_source() -> None:
    source = Source(READY, text("one;"), text(";two"), 60.0)
    with source.serve() as live:
        choice = live.post("/v1/chat/completions", chat(stop=";;")).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")
        body = messages(stop_sequences=[";;"])
        message = live.post("/v1/messages", body).json()
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", ";;")
    assert source.ended == 2


def test_what_a_job_tells_the_source() -> None:
    source = Source(READY, text("a"), STOP)
    with source.serve(api_keys={"ann": "k"}, request_timeout=100.0) as live:
        began = time.monotonic()
        body = chat(n=2, max_tokens=5, seed=3, logprobs=True, top_logprobs=2)
        reply = live.post(
            "/v1/chat/completions", body, x_api_key="k", x_dsinfer_priority="7"
        ).json()
    first, second = sorted(source.jobs, key=lambda job: job.choice)
    assert (first.choice, second.choice) == (0, 1)
    assert first.id == second.id == reply["id"]
    assert first.prompt_ids == second.prompt_ids
    assert first.prompt.prompt.endswith("</think>")
    assert (first.max_tokens, first.tenant, first.hints) == (5, "ann", {"priority": "7"})
    assert first.options.seed == 3
    assert first.options.top_logprobs == 2
    assert 99 < first.deadline - began < 101


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(stream: bool) -> None:
    source = Source(READY, text("a", 2), 0.05, text("b", 3), STOP)
    with source.serve() as live:
        reply = live.post("/v1/chat/completions", chat(n=3, stream=stream))
        if not stream:
            body = reply.json()
            contents = [choice["message"]["content"] for choice in body["choices"]]
            usage = body["usage"]
        else:
            events = read_events(reply.body)
            assert ends_well("chat", events)
            chunks = [event.json() for event in events[:-1]]
            contents = ["", "", ""]
            for chunk in chunks:
                for choice in chunk["choices"]:
                    contents[choice["index"]] += choice["delta"]["content"]
            usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
            assert len(usages) == 1
            usage = usages[0]
        refused = live.post("/v1/chat/completions", chat(n=9))
    assert contents == ["ab"] * 3
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (9, 15)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert refused.status == 400


@pytest.mark.parametrize("last", [0, 1])
def test_the_usage_of_several_choices_does_not_depend_on_which_ends_last(last: int) -> None:
    """The second choice finds in the cache what the first one has just put there."""

    async def infer(job: InferenceJob) -> AsyncGenerator[InferenceChunk, None]:
        usage = PromptUsage(prompt_tokens=9, prompt_cache_hit_tokens=4 + job.choice)
        yield InferenceChunk.ready(prompt_usage=usage)
        yield text("a")
        await asyncio.sleep(0.1 if job.choice == last else 0.0)
        yield STOP

    settings = ServerSettings(default_thinking=False)
    with running(create_app(infer, TOKENIZER, settings)) as live:
        usage = live.post("/v1/chat/completions", chat(n=2)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


def test_one_choice_that_fails_ends_them_all() -> None:
    async def infer(job: InferenceJob) -> AsyncGenerator[InferenceChunk, None]:
        yield READY
        yield text("a")
        if job.choice == 1:
            raise SourceError("No memory.")
        await asyncio.sleep(60)

    settings = ServerSettings(default_thinking=False)
    with running(create_app(infer, TOKENIZER, settings)) as live:
        reply = live.post("/v1/chat/completions", chat(n=3))
        assert reply.status == 500
        until(lambda: live.app.state.admission.running == 0)


def test_log_probabilities_are_cut_to_what_was_asked_for() -> None:
    ids = TOKENIZER.encode("ab")
    logprobs = [(-0.5, [(id, -0.5), (50, -1.0), (51, -2.0)]) for id in ids]
    source = Source(READY, InferenceChunk.tokens(ids, logprobs), STOP)
    with source.serve() as live:
        path = "/v1/chat/completions"
        asked = live.post(path, chat(logprobs=True, top_logprobs=2)).json()["choices"][0]
        entries = asked["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(ids)
        bare = live.post(path, chat(logprobs=True)).json()["choices"][0]
        assert [entry["top_logprobs"] for entry in bare["logprobs"]["content"]] == [[]] * len(ids)
        assert live.post(path, chat()).json()["choices"][0]["logprobs"] is None
        output = live.post("/v1/responses", responses(top_logprobs=1)).json()["output"]
        assert len(output[0]["content"][0]["logprobs"][0]["top_logprobs"]) == 1


def test_usage_agrees_in_all_dialects() -> None:
    ids = TOKENIZER.encode("well</think>ab")
    source = Source(READY, InferenceChunk.tokens(ids), STOP)
    with source.serve(default_thinking=True) as live:
        in_chat = live.post("/v1/chat/completions", chat()).json()["usage"]
        in_responses = live.post("/v1/responses", responses()).json()["usage"]
        in_messages = live.post("/v1/messages", messages()).json()["usage"]
        streamed = read_events(live.post("/v1/messages", messages(stream=True)).body)
    assert in_chat["prompt_tokens"] == in_responses["input_tokens"] == 9
    assert in_messages["input_tokens"] + in_messages["cache_read_input_tokens"] == 9
    cached = in_chat["prompt_tokens_details"]["cached_tokens"]
    assert cached == in_responses["input_tokens_details"]["cached_tokens"] == 4
    assert in_messages["cache_read_input_tokens"] == 4
    completion = in_chat["completion_tokens"]
    assert completion == in_responses["output_tokens"] == in_messages["output_tokens"] == len(ids)
    reasoning = in_chat["completion_tokens_details"]["reasoning_tokens"]
    assert reasoning == in_responses["output_tokens_details"]["reasoning_tokens"]
    assert reasoning == len(TOKENIZER.encode("well"))
    assert streamed[0].json()["message"]["usage"]["cache_read_input_tokens"] == 4
    assert streamed[-2].json()["usage"] == in_messages


def test_a_storm_of_clients_that_leave_leaves_nothing_behind() -> None:
    source = Source(READY, *[text("a"), 0.01] * 500, STOP)
    with source.serve() as live:

        def come_and_go() -> None:
            for number in range(10):
                path, make = PATHS[DIALECTS[number % 3]]
                connection = live.connection()
                connection.request("POST", path, json.dumps(make(stream=True)))
                if number % 2:
                    connection.getresponse().read(1 + 37 * number)
                connection.close()

        threads = [threading.Thread(target=come_and_go) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: source.running == 0, seconds=3)
        until(lambda: live.app.state.admission.running == 0)
        until(lambda: live.app.state.admission.body_bytes == 0)
        assert live.get("/health").status == 200
        until(lambda: source.tasks() <= 4)  # of uvicorn itself
