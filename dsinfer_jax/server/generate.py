"""The three endpoints that generate: one exchange from its headers to its last byte."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from time import time
from typing import Any

from dsinfer_jax.recipe import ConversionError, Tokenizer
from dsinfer_jax.recipe.store import ResponseStore
from dsinfer_jax.server.answer import Answer
from dsinfer_jax.server.auth import ApiKeys
from dsinfer_jax.server.connection import (
    Body,
    ClientGone,
    Receive,
    Scope,
    Send,
    header_table,
    read_body,
    send_whole,
    until_gone,
)
from dsinfer_jax.server.dialects import RESPONSES, Dialect
from dsinfer_jax.server.errors import Headers, RequestError, error_body, request_error
from dsinfer_jax.server.limits import DRAINING, Admission, Ticket
from dsinfer_jax.server.logs import log, log_failure
from dsinfer_jax.server.metrics import Metrics
from dsinfer_jax.server.prepare import Asker, Prepared, Preparer
from dsinfer_jax.server.record import CLIENT_GONE, RequestRecord
from dsinfer_jax.server.settings import ServerSettings
from dsinfer_jax.server.source import Infer, SourceError
from dsinfer_jax.server.sse import EventStream
from dsinfer_jax.server.stored import TenantStore, keep
from dsinfer_jax.server.tracing import Tracer

LONG_BODY = 64 * 1024  # bytes: reading and encoding more would hold up the event loop
HINT = "x-dsinfer-"
LONGEST_ID = 128


@dataclass(frozen=True)
class Service:
    """What all endpoints share."""

    settings: ServerSettings
    infer: Infer
    tokenizer: Tokenizer
    store: ResponseStore | None
    keys: ApiKeys
    admission: Admission
    metrics: Metrics
    tracer: Tracer
    preparer: Preparer

    def store_of(self, tenant: str) -> ResponseStore | None:
        """The part of the store that a tenant sees."""
        return None if self.store is None else TenantStore(self.store, tenant)


def request_id(headers: dict[str, str]) -> str:
    """The id that the client gave, if it is fit for a log line, or a new one."""
    given = headers.get("x-request-id", "")
    fair = 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable()
    return given if fair and " " not in given else "req_" + secrets.token_hex(12)


class Endpoint:
    """An ASGI application that answers POST requests of one dialect.

    `counts`: with the number of tokens of the prompt instead of an answer.
    """

    def __init__(self, dialect: Dialect, service: Service, *, counts: bool = False) -> None:
        self._dialect = dialect
        self._service = service
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        headers = header_table(scope)
        record = RequestRecord(
            request_id(headers), self._dialect.name, scope["method"], scope["path"]
        )
        with service.tracer.span(record, headers):
            body = Body(service.admission)
            exchange = Exchange(self._dialect, service, record, headers, send)
            try:
                await self._answer(exchange, body, receive)
            except ClientGone:
                record.status = CLIENT_GONE
            except Exception as error:
                await exchange.fail(error)
            finally:
                body.release()
                record.end()
                service.metrics.count(record)
                log("request", **record.to_fields())

    async def _answer(self, exchange: Exchange, body: Body, receive: Receive) -> None:
        service = self._service
        refused = None
        try:
            exchange.record.tenant = service.keys.tenant(exchange.headers)
        except RequestError as error:
            refused = error
        with service.admission.reading() as ticket:
            async with _deadline(ticket, service, _late_body):
                await read_body(receive, body, service.settings, refused)
        with service.admission.admit() as ticket:
            async with _deadline(ticket, service, _late_answer):
                if self._counts:
                    await exchange.count(body.take())
                else:
                    await exchange.generate(body.take(), ticket, receive)


class Exchange:
    """One request and its response."""

    def __init__(
        self,
        dialect: Dialect,
        service: Service,
        record: RequestRecord,
        headers: dict[str, str],
        send: Send,
    ) -> None:
        self._dialect = dialect
        self._service = service
        self.record = record
        self.headers = headers
        self._send = send
        self._stream: EventStream | None = None
        self._begun = False

    async def generate(self, raw: bytes, ticket: Ticket, receive: Receive) -> None:
        """Run the request and send its answer, whole or as events."""
        service, record = self._service, self.record
        hints = {name.removeprefix(HINT): value
                 for name, value in self.headers.items() if name.startswith(HINT)}  # fmt: skip
        asker = Asker(record.tenant, ticket.deadline, hints)
        store = service.store_of(record.tenant)
        prepared = await self._off_loop(
            raw, service.preparer.prepare, self._dialect, raw, asker, store
        )
        record.response_id, record.model = prepared.id, prepared.model
        record.stream, record.choices = prepared.request.stream, len(prepared.jobs)
        if service.settings.log_prompts:
            log("prompt", id=record.id, prompt=prepared.jobs[0].prompt.prompt)
        answer = Answer(prepared, service.infer, service.settings.stall_timeout)

        def before_end(text: str) -> None:
            self._keep(prepared, text, store)

        try:
            if prepared.request.stream:
                await self._send_events(answer, receive, before_end)
            else:
                await self._send_whole(answer, receive, before_end)
        finally:
            record.take_answer(answer)
            for processor in prepared.processors:
                service.metrics.count_report(processor)

    async def count(self, raw: bytes) -> None:
        """Send the number of tokens of the prompt."""
        preparer = self._service.preparer
        tokens = await self._off_loop(raw, preparer.count, self._dialect, raw)
        self.record.prompt_tokens = tokens
        await self._respond(200, json.dumps({"input_tokens": tokens}))

    async def fail(self, error: Exception) -> None:
        """Send an error in the dialect's own shape, as a response or as the last event."""
        service, record = self._service, self.record
        if not isinstance(error, RequestError | ConversionError | SourceError):
            log_failure("a request failed", id=record.id)
        shown = request_error(error)
        record.error = shown.message
        try:
            async with asyncio.timeout(service.settings.write_timeout):
                if self._stream is not None and self._stream.started:
                    record.status = 200
                    await self._stream.fail(shown, record.id)
                elif not self._begun:
                    body = error_body(self._dialect, shown, record.id)
                    await self._respond(shown.status, body, shown.headers())
        except (TimeoutError, ClientGone):
            record.status = CLIENT_GONE

    async def _send_events(
        self, answer: Answer, receive: Receive, before_end: Callable[[str], None]
    ) -> None:
        self._stream = EventStream(
            self._send, answer, self._id_headers(), self._service.settings, before_end
        )
        try:
            await self._stream.run(receive)
        finally:
            self.record.events = self._stream.events
        self.record.status = 200

    async def _send_whole(
        self, answer: Answer, receive: Receive, before_end: Callable[[str], None]
    ) -> None:
        prepared = answer.prepared
        whole = self._dialect.response(
            prepared.id, prepared.model, int(time()), answer.prompt_tokens, 0
        )

        async def add_up() -> str:
            async with aclosing(answer.batches()) as batches:
                async for batch in batches:
                    for event in batch:
                        whole.accumulate(event)
            return whole.to_json()

        text = await until_gone(receive, add_up())
        before_end(text)
        await self._respond(200, text)

    async def _respond(self, status: int, text: str, headers: Headers | None = None) -> None:
        self.record.status = status
        self._begun = True
        await send_whole(self._send, status, text.encode(), [*self._id_headers(), *(headers or [])])

    def _id_headers(self) -> Headers:
        id = self.record.id.encode()
        return [(b"x-request-id", id), (b"request-id", id)]  # one for each family of SDKs

    def _keep(self, prepared: Prepared, text: str, store: ResponseStore | None) -> None:
        """Store a response that is complete."""
        if self._dialect is not RESPONSES or store is None or prepared.body is None:
            return
        response = json.loads(text)
        keep(prepared.body, response.get("response", response), store)

    async def _off_loop(self, raw: bytes, work: Any, *arguments: Any) -> Any:
        """The result of work on a body, in a thread if the body is long."""
        if len(raw) < LONG_BODY:
            return work(*arguments)
        return await asyncio.to_thread(work, *arguments)


@asynccontextmanager
async def _deadline(
    ticket: Ticket, service: Service, late: Callable[[ServerSettings], RequestError]
) -> AsyncIterator[None]:
    """End the block at the deadline of a ticket with the error that fits."""
    timeout = ticket.timeout()
    try:
        async with timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        if service.admission.draining:
            raise RequestError(503, DRAINING, service.settings.retry_after) from None
        raise late(service.settings) from None


def _late_body(settings: ServerSettings) -> RequestError:
    return RequestError(
        408, f"The request body did not arrive within {settings.body_timeout:g} seconds."
    )


def _late_answer(settings: ServerSettings) -> RequestError:
    return RequestError(504, f"The request took longer than {settings.request_timeout:g} seconds.")
