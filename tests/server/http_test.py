"""What every request meets before and beside the dialects: keys, limits, ids, errors, models."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from live import MODEL, PATHS, Live, chat, messages, responses, running, until

from dsinfer_jax.recipe import InferenceChunk, ModelVersion
from dsinfer_jax.server import InferenceJob, ServerSettings, create_app
from dsinfer_jax.server.mock import MockOptions, create_mock_app
from dsinfer_jax.server.mock.source import demo_tokenizer

DIALECTS = list(PATHS)


def error_of(dialect: str, body: Any) -> dict[str, Any]:
    """The error object of a body in the shape of its dialect."""
    if dialect == "messages":
        assert set(body) == {"type", "error", "request_id"}
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "invalid JSON request: EOF while parsing an object at line 1 column 1"),
        (b"[]", "invalid length 0"),
        (b"\xff", "invalid JSON request"),
        (b'{"model":7}', "expected a string"),
        (b"[" * 200, "recursion limit exceeded"),
    ],
)
def test_a_body_that_cannot_be_read(mock: Live, dialect: str, body: bytes, message: str) -> None:
    reply = mock.post(PATHS[dialect][0], body)
    assert reply.status == 400
    assert message in error_of(dialect, reply.json())["message"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_unknown_model(mock: Live, dialect: str) -> None:
    path, make = PATHS[dialect]
    reply = mock.post(path, make(model="nope", stream=True))
    assert reply.status == 400
    error = error_of(dialect, reply.json())
    assert error["type"] == "invalid_request_error"
    assert error["message"] == (f"The supported API model names are {MODEL}, but you passed nope.")


@pytest.mark.parametrize(
    ("path", "dialect"), [("/v1/nope", "chat"), ("/v1/messages/x", "messages")]
)
def test_paths_that_do_not_exist(mock: Live, path: str, dialect: str) -> None:
    reply = mock.get(path)
    assert reply.status == 404
    assert error_of(dialect, reply.json())["type"] == "not_found_error"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_wrong_method(mock: Live, dialect: str) -> None:
    reply = mock.get(PATHS[dialect][0])
    assert reply.status == 405
    assert reply.headers["allow"] == "POST"
    error_of(dialect, reply.json())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_request_ids_come_back(mock: Live, dialect: str) -> None:
    path, make = PATHS[dialect]
    given = mock.post(path, make(), x_request_id="abc-1")
    assert given.headers["x-request-id"] == given.headers["request-id"] == "abc-1"
    made = mock.post(path, make(stream=True), x_request_id="with blank")
    assert made.headers["x-request-id"].startswith("req_")
    assert made.headers["request-id"] == made.headers["x-request-id"]


def test_keys() -> None:
    settings = ServerSettings(api_keys={"ann": "secret-1", "bob": "secret-2"})
    with running(create_mock_app(settings=settings)) as live:
        for dialect, (path, make) in PATHS.items():
            for headers in ({}, {"authorization": "Bearer nope"}, {"x-api-key": ""}):
                reply = live.post(path, make(), **headers)
                assert reply.status == 401
                assert error_of(dialect, reply.json())["type"] == "authentication_error"
            assert live.post(path, make(), authorization="Bearer secret-1").status == 200
            assert live.post(path, make(), x_api_key="secret-2").status == 200
        for path in ("/v1/models", "/metrics", "/status.json"):
            assert live.get(path).status == 401
            assert live.get(path, x_api_key="secret-1").status == 200
        assert live.get("/health").status == 200
        assert live.get("/").status == 200


def test_nobody_reads_the_responses_of_others() -> None:
    settings = ServerSettings(api_keys={"ann": "secret-1", "bob": "secret-2"})
    with running(create_mock_app(settings=settings)) as live:
        id = live.post("/v1/responses", responses(), x_api_key="secret-1").json()["id"]
        assert live.get(f"/v1/responses/{id}", x_api_key="secret-1").json()["id"] == id
        assert live.get(f"/v1/responses/{id}", x_api_key="secret-2").status == 404
        body = responses(previous_response_id=id)
        assert live.post("/v1/responses", body, x_api_key="secret-2").status == 400
        assert live.post("/v1/responses", body, x_api_key="secret-1").status == 200


def test_cors_is_off_unless_asked_for(mock: Live) -> None:
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in mock.get("/health", **headers).headers
    assert mock.ask("OPTIONS", "/v1/messages", None, **headers).status == 405
    with running(
        create_mock_app(settings=ServerSettings(cors_origins=("https://a.example",)))
    ) as live:
        allowed = live.ask("OPTIONS", "/v1/messages", None, **headers)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        refused = live.ask("OPTIONS", "/v1/messages", None, **{**headers, "origin": "https://b"})
        assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_body_that_is_too_long(dialect: str) -> None:
    path, make = PATHS[dialect]
    with running(create_mock_app(settings=ServerSettings(max_body=2_000))) as live:
        reply = live.post(path, make("x" * 3_000))
        assert reply.status == 413
        expected = "request_too_large" if dialect == "messages" else "invalid_request_error"
        assert error_of(dialect, reply.json())["type"] == expected
        assert live.post(path, make("x")).status == 200
        until(lambda: live.app.state.admission.body_bytes == 0)


def test_all_bodies_together_are_limited() -> None:
    with running(create_mock_app(settings=ServerSettings(max_bodies=2_000))) as live:
        reply = live.post("/v1/messages", messages("x" * 3_000))
        assert reply.status == 429
        assert reply.headers["retry-after"] == "1"
        until(lambda: live.app.state.admission.body_bytes == 0)


def test_a_body_that_does_not_come() -> None:
    with (
        running(create_mock_app(settings=ServerSettings(body_timeout=0.2))) as live,
        socket.create_connection(("127.0.0.1", live.port), timeout=10) as client,
    ):
        client.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
        answer = client.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 0.2 seconds" in answer


def test_a_body_that_does_not_come_before_the_end_of_the_server() -> None:
    settings = ServerSettings(drain_timeout=0.2)
    with running(create_mock_app(settings=settings)) as live:
        client = socket.create_connection(("127.0.0.1", live.port), timeout=10)
        client.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
        until(lambda: live.app.state.admission.body_bytes == 1)
    with client:
        answer = client.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"shutting down" in answer


def test_a_responses_body_may_be_a_list_of_its_members(mock: Live) -> None:
    listed = [MODEL, "Hi.", *[None] * 11]
    assert mock.post("/v1/responses", listed).json()["status"] == "completed"


@pytest.mark.parametrize("previous", [7, {}, ["a"], "nope"])
def test_previous_responses_that_are_none(mock: Live, previous: Any) -> None:
    reply = mock.post("/v1/responses", responses(previous_response_id=previous))
    assert reply.status == 400
    error_of("responses", reply.json())


def test_a_server_that_keeps_no_responses() -> None:
    with running(create_mock_app(settings=ServerSettings(max_stored=0))) as live:
        id = live.post("/v1/responses", responses()).json()["id"]
        assert live.get(f"/v1/responses/{id}").status == 404
        reply = live.post("/v1/responses", responses(previous_response_id=id))
        assert reply.status == 400
        assert "keeps no responses" in reply.json()["error"]["message"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_more_requests_than_may_run(dialect: str) -> None:
    path, make = PATHS[dialect]
    settings = ServerSettings(max_running=1, retry_after=7)
    with running(create_mock_app(MockOptions(delay=0.05), settings)) as live:
        first = threading.Thread(target=live.post, args=(path, make()))
        first.start()
        until(lambda: live.app.state.admission.running == 1)
        reply = live.post(path, make())
        assert reply.status == 429
        assert reply.headers["retry-after"] == "7"
        assert error_of(dialect, reply.json())["type"] == "rate_limit_error"
        first.join()
        until(lambda: live.app.state.admission.running == 0)


def test_models_fit_both_families_of_sdks(mock: Live) -> None:
    listed = mock.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == [MODEL]
    assert listed["has_more"] is False
    assert mock.get(f"/v1/models/{MODEL}").json() == listed["data"][0]
    assert mock.get("/v1/models/a/b").status == 404


def test_model_names_with_slashes() -> None:
    settings = ServerSettings(models={"org/name": ModelVersion.DeepseekV41Flash})
    with running(create_mock_app(settings=settings)) as live:
        assert live.get("/v1/models/org/name").json()["id"] == "org/name"
        assert live.post("/v1/chat/completions", chat(model="org/name")).status == 200


def test_health_metrics_and_status(mock: Live) -> None:
    mock.post("/v1/messages", messages())
    requests = mock.app.state.service.metrics.requests
    until(lambda: requests["messages", "ok", 200] > 0)  # counted after the last byte
    assert mock.get("/health").json() == {"status": "ok"}
    page = mock.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = page.body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    ok = 'dsinfer_server_requests_total{dialect="messages",outcome="ok",status="200"}'
    assert float(values[ok]) >= 1
    bucket = 'dsinfer_server_request_seconds_bucket{dialect="messages",le="+Inf"}'
    assert values[bucket] == values['dsinfer_server_request_seconds_count{dialect="messages"}']
    assert "# TYPE dsinfer_server_request_seconds histogram" in lines
    assert len([line for line in lines if line.startswith("# TYPE")]) == len(
        {line for line in lines if line.startswith("# TYPE")}
    )
    status = mock.get("/status.json").json()
    assert status["source"]["name"] == "mock"
    assert status["server"]["outcomes"]["ok"] >= 1


def test_counting_tokens_gives_what_generating_reports(mock: Live) -> None:
    body = messages("How many? 多少?", tools=[{"name": "f", "input_schema": {"type": "object"}}])
    counted = mock.post("/v1/messages/count_tokens", body).json()
    usage = mock.post("/v1/messages", body).json()["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    refused = mock.post("/v1/messages/count_tokens", b"{}")
    assert refused.status == 400
    error_of("messages", refused.json())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_source_that_breaks_is_an_error_without_its_secrets(dialect: str) -> None:
    async def infer(job: InferenceJob) -> Any:
        yield InferenceChunk.ready()
        raise KeyError("secret detail")

    path, make = PATHS[dialect]
    with running(create_app(infer, demo_tokenizer())) as live:
        for stream in (False, True):
            reply = live.post(path, make(stream=stream))
            assert reply.status == 500
            message = error_of(dialect, reply.json())["message"]
            assert message == "The server failed to answer this request; its log says why."


def test_a_long_body_does_not_hold_up_others(mock: Live) -> None:
    body = messages("word " * 200_000)  # a second or so of encoding
    worker = threading.Thread(target=mock.post, args=("/v1/messages/count_tokens", body))
    worker.start()
    slowest = 0.0
    while worker.is_alive():
        began = time.monotonic()
        assert mock.get("/health").status == 200
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 0.5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("models", {}, "models is empty"),
        ("max_choices", 300, "max_choices is 300"),
        ("max_body", 0, "max_body is 0"),
        ("ping_interval", 0.0, "ping_interval is 0.0"),
        ("retry_after", -1, "retry_after is -1"),
        ("api_keys", {"ann": ""}, "empty key"),
    ],
)
def test_settings_that_cannot_be_used(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerSettings(**{name: value})
