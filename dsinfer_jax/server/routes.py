"""The endpoints that answer at once: models, stored Responses, health, metrics, status."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.resources import files
from time import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from dsinfer_jax.recipe.store import ResponseStore
from dsinfer_jax.server.connection import JSON_TYPE
from dsinfer_jax.server.dialects import dialect_of_path
from dsinfer_jax.server.errors import RequestError, error_body
from dsinfer_jax.server.generate import Service, request_id
from dsinfer_jax.server.metrics import exposition
from dsinfer_jax.server.openapi import openapi_document
from dsinfer_jax.server.source import Snapshot
from dsinfer_jax.server.stored import delete_response, load_object

OWNER = "deepseek"
PAGE_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)


def json_response(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(text, status, media_type=JSON_TYPE.decode())


class Routes:
    """Endpoints as methods; each takes a request and returns a response."""

    def __init__(self, service: Service, snapshot: Snapshot) -> None:
        self._service = service
        self._snapshot = snapshot
        self._created = int(time())

    async def models(self, request: Request) -> Response:
        """The models, with the members of both families of SDKs."""
        self._tenant(request)
        data = [self._model(name) for name in self._service.settings.models]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
        return json_response({"object": "list", "data": data, **ends})

    async def model(self, request: Request) -> Response:
        self._tenant(request)
        name = request.path_params["name"]
        if name not in self._service.settings.models:
            raise RequestError(404, f"The model '{name}' does not exist.")
        return json_response(self._model(name))

    async def stored_response(self, request: Request) -> Response:
        """A stored response as it was sent."""
        store, id = self._store(request), request.path_params["id"]
        found = load_object(id, store)
        if found is None:
            raise _not_found(id)
        return json_response(found)

    async def delete_stored_response(self, request: Request) -> Response:
        """Forget a stored response."""
        store, id = self._store(request), request.path_params["id"]
        if not delete_response(id, store):
            raise _not_found(id)
        return json_response({"id": id, "object": "response", "deleted": True})

    async def health(self, request: Request) -> Response:
        """200 while new requests are taken and can be answered, otherwise 503."""
        if self._service.admission.draining:
            return json_response({"status": "draining"}, 503)
        reason = self._snapshot().get("unavailable")
        if reason is not None:
            return json_response({"status": "unavailable", "reason": reason}, 503)
        return json_response({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        self._tenant(request)
        service = self._service
        entries = service.metrics.entries(service.admission, self._snapshot())
        return PlainTextResponse(
            exposition(entries), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def status(self, request: Request) -> Response:
        """What the status page shows."""
        self._tenant(request)
        service = self._service
        snapshot = {name: value for name, value in self._snapshot().items() if name != "metrics"}
        outcomes: dict[str, int] = {}
        for (_, outcome, _), number in service.metrics.requests.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + number
        server = {
            "running": service.admission.running,
            "draining": service.admission.draining,
            "models": list(service.settings.models),
            "outcomes": outcomes,
            "tokens": dict(service.metrics.tokens),
            "seconds_up": round(time() - self._created, 1),
        }
        return json_response({"server": server, "source": snapshot})

    async def page(self, request: Request) -> Response:
        """The status page; its policy lets it ask this server and nobody else."""
        page = files("dsinfer_jax.server") / "static" / "status.html"
        headers = {"content-security-policy": PAGE_POLICY}
        return HTMLResponse(page.read_text(encoding="utf-8"), headers=headers)

    async def openapi(self, request: Request) -> Response:
        return json_response(openapi_document(self._service.settings))

    def _tenant(self, request: Request) -> str:
        return self._service.keys.tenant(request.headers)

    def _store(self, request: Request) -> ResponseStore:
        store = self._service.store_of(self._tenant(request))
        if store is None:
            raise RequestError(404, "This server keeps no responses.")
        return store

    def _model(self, name: str) -> dict[str, Any]:
        created = datetime.fromtimestamp(self._created, UTC).isoformat().replace("+00:00", "Z")
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "type": "model",
            "display_name": name,
            "created_at": created,
            "lifecycle": "active",
            "max_input_tokens": self._service.settings.context_limit,
        }


def _not_found(id: str) -> RequestError:
    return RequestError(404, f"Response with id '{id}' not found.")


async def on_request_error(request: Request, error: Exception) -> Response:
    """An error of these endpoints, in the shape of the dialect that the path belongs to."""
    if isinstance(error, HTTPException):
        detail = f"{request.method} {request.url.path}: {error.detail}."
        headers = dict(error.headers or {})
        error = RequestError(error.status_code, detail)
    else:
        assert isinstance(error, RequestError)
        headers = {}
    id = request_id(dict(request.headers))
    body = error_body(dialect_of_path(request.url.path), error, id)
    headers |= {"x-request-id": id, "request-id": id}
    headers |= {name.decode(): value.decode() for name, value in error.headers()}
    return Response(body, error.status, headers, media_type=JSON_TYPE.decode())
