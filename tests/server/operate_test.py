"""What operators see: spans, and the figures of sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from live import PATHS, chat, messages, running, until

from dsinfer_jax.recipe import InferenceChunk, InferenceFinishReason
from dsinfer_jax.server import InferenceJob, SourceSnapshot, create_app
from dsinfer_jax.server.metrics import exposition
from dsinfer_jax.server.mock import create_mock_app
from dsinfer_jax.server.mock.source import demo_tokenizer
from dsinfer_jax.server.record import RequestRecord
from dsinfer_jax.server.tracing import Tracer


async def infer(job: InferenceJob) -> AsyncGenerator[InferenceChunk, None]:
    yield InferenceChunk.ready()
    await asyncio.sleep(0)
    yield InferenceChunk.text("</think>b", 2)
    yield InferenceChunk.finish(InferenceFinishReason.Stop)


def test_figures_of_the_source_are_on_the_page() -> None:
    snapshot: SourceSnapshot = {
        "name": "engine",
        "running": 3,
        "cache_used": 0.25,
        "acceptance": 0.5,
        "steps": [{"kind": "decode", "steps": 1, "tokens": 3, "seconds": 0.01}],
        "metrics": {'dsinfer_steps_total{kind="decode"}': 7, "dsinfer_x": 1.5},
    }
    with running(create_app(infer, demo_tokenizer(), snapshot=lambda: snapshot)) as live:
        live.post("/v1/chat/completions", chat())
        until(lambda: live.app.state.service.metrics.requests.total() == 1)
        lines = live.get("/metrics").body.decode().splitlines()
        status = live.get("/status.json").json()
    assert "dsinfer_source_running 3" in lines
    assert "dsinfer_source_acceptance 0.5" in lines
    assert 'dsinfer_steps_total{kind="decode"} 7' in lines
    assert lines[lines.index("dsinfer_x 1.5") - 1] == "# TYPE dsinfer_x gauge"
    assert 'dsinfer_server_tokens_total{kind="output"} 2' in lines
    assert status["source"] == {k: v for k, v in snapshot.items() if k != "metrics"}


def test_what_reading_outputs_dropped_is_counted() -> None:
    with running(create_app(infer, demo_tokenizer())) as live:
        live.post("/v1/chat/completions", chat(thinking={"type": "disabled"}))
        until(lambda: live.app.state.service.metrics.requests.total() == 1)
        page = live.get("/metrics").body.decode()
    wanted = 'dsinfer_server_output_reports_total{table="dropped",place="think_end_in_content"} '
    assert wanted in page


def test_the_page_can_be_read_by_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    with running(create_mock_app()) as live:
        for path, make in PATHS.values():
            live.post(path, make())
            live.post(path, make(stream=True))
        counted = live.app.state.service.metrics.requests
        until(lambda: counted.total() == 6)  # a request is counted after its last byte
        page = live.get("/metrics").body.decode()
    families = {family.name: family for family in parser.text_string_to_metric_families(page)}
    assert families["dsinfer_server_request_seconds"].type == "histogram"
    assert families["dsinfer_server_requests"].type == "counter"
    assert sum(sample.value for sample in families["dsinfer_server_requests"].samples) == 6


def test_each_name_has_one_type() -> None:
    entries = {
        'a_bucket{le="1"}': 1,
        'a_bucket{le="+Inf"}': 2,
        "a_sum": 3,
        "a_count": 2,
        "b_total": 1,
    }
    lines = exposition(entries).splitlines()
    assert [line for line in lines if line[0] == "#"] == [
        "# TYPE a histogram",
        "# TYPE b_total counter",
    ]


def test_a_request_is_a_span() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry import trace

    spans = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with running(create_mock_app()) as live:
        live.post("/v1/messages", messages(), traceparent=parent)
        live.post("/v1/messages", b"{")
        until(lambda: len(spans.get_finished_spans()) == 2)
    good, bad = spans.get_finished_spans()
    assert good.name == "POST /v1/messages"
    assert f"{good.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert good.attributes["gen_ai.usage.output_tokens"] > 0
    assert good.attributes["http.response.status_code"] == 200
    assert bad.attributes["http.response.status_code"] == 400
    assert "error.message" in bad.attributes


def test_without_opentelemetry_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    with Tracer().span(RequestRecord("a", "chat", "POST", "/"), {}):
        pass


def test_the_page_needs_nothing_from_elsewhere() -> None:
    with running(create_mock_app()) as live:
        reply = live.get("/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    page = reply.body.decode()
    assert "status.json" in page
    for outside in ("http://", "https://", "//cdn", "@import", "src="):
        assert outside not in page
