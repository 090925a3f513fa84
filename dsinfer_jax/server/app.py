"""The ASGI application: which path leads where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from dsinfer_jax.recipe import Tokenizer
from dsinfer_jax.recipe.store import ResponseStore
from dsinfer_jax.server.auth import ApiKeys
from dsinfer_jax.server.dialects import CHAT, MESSAGES, RESPONSES
from dsinfer_jax.server.errors import RequestError
from dsinfer_jax.server.generate import Endpoint, Service
from dsinfer_jax.server.limits import Admission
from dsinfer_jax.server.metrics import Metrics
from dsinfer_jax.server.prepare import Preparer
from dsinfer_jax.server.routes import Routes, on_request_error
from dsinfer_jax.server.settings import ServerSettings
from dsinfer_jax.server.source import Infer, Snapshot, SourceSnapshot
from dsinfer_jax.server.stored import SizedResponseStore
from dsinfer_jax.server.tracing import Tracer


def create_app(
    infer: Infer,
    tokenizer: Tokenizer,
    settings: ServerSettings | None = None,
    *,
    snapshot: Snapshot | None = None,
    store: ResponseStore | None = None,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """The server around a source of tokens.

    Args:
        infer: makes tokens; see `source.py`.
        tokenizer: encodes prompts and reads the source's ids.
        settings: default: everybody may ask, from this machine or wherever it listens.
        snapshot: what the source says about itself for metrics and the status page.
        store: keeps Responses; default: in memory, as many as the settings allow.
        lifespan: entered in the server's event loop before the first request, left after the last
            one: where an engine starts and ends.

    Returns:
        The application; `app.state.admission` is what a process drains before it ends.
    """
    settings = settings or ServerSettings()
    if store is None and settings.max_stored:
        store = SizedResponseStore(settings.max_stored)
    service = Service(
        settings=settings,
        infer=infer,
        tokenizer=tokenizer,
        store=store,
        keys=ApiKeys(settings.api_keys),
        admission=Admission(settings),
        metrics=Metrics(),
        tracer=Tracer(),
        preparer=Preparer(settings, tokenizer),
    )
    routes = Routes(service, snapshot or SourceSnapshot)
    stored = "/v1/responses/{id}"
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", Endpoint(CHAT, service), methods=["POST"]),
            Route("/v1/responses", Endpoint(RESPONSES, service), methods=["POST"]),
            Route("/v1/messages", Endpoint(MESSAGES, service), methods=["POST"]),
            Route(
                "/v1/messages/count_tokens",
                Endpoint(MESSAGES, service, counts=True),
                methods=["POST"],
            ),
            Route(stored, routes.stored_response, methods=["GET"]),
            Route(stored, routes.delete_stored_response, methods=["DELETE"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
            Route("/status.json", routes.status),
            Route("/openapi.json", routes.openapi),
            Route("/", routes.page),
        ],
        middleware=_middleware(settings),
        lifespan=lifespan,
        exception_handlers={HTTPException: on_request_error, RequestError: on_request_error},
    )
    app.state.admission = service.admission
    app.state.service = service
    return app


def _middleware(settings: ServerSettings) -> list[Middleware]:
    if not settings.cors_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )
    ]
