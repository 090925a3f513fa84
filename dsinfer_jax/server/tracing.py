"""Spans of OpenTelemetry, if its API is installed; otherwise nothing at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dsinfer_jax.server.record import RequestRecord

ATTRIBUTES = {
    "id": "dsinfer.request_id",
    "dialect": "dsinfer.dialect",
    "status": "http.response.status_code",
    "method": "http.request.method",
    "path": "url.path",
    "model": "gen_ai.request.model",
    "response_id": "gen_ai.response.id",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "error": "error.message",
}


class Tracer:
    """Makes one span for each request. Reads the caller's trace context from the headers."""

    def __init__(self) -> None:
        self._tracer: Any = None
        try:
            from opentelemetry import trace
            from opentelemetry.propagate import extract
        except ImportError:
            return
        self._tracer = trace.get_tracer("dsinfer_jax.server")
        self._kind = trace.SpanKind.SERVER
        self._extract = extract

    @contextmanager
    def span(self, record: RequestRecord, headers: Mapping[str, str]) -> Iterator[None]:
        """A span around the request; its attributes are those of the record at the end."""
        if self._tracer is None:
            yield
            return
        with self._tracer.start_as_current_span(
            f"{record.method} {record.path}", context=self._extract(headers), kind=self._kind
        ) as span:
            try:
                yield
            finally:
                for name, attribute in ATTRIBUTES.items():
                    value = getattr(record, name)
                    if value is not None:
                        span.set_attribute(attribute, value)
