"""The OpenAPI document, and bodies made at random from it and against it."""

from __future__ import annotations

import json
import random
from typing import Any

import hypothesis
import pytest
import schemathesis
from live import PATHS, Live
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dsinfer_jax.server import ServerSettings
from dsinfer_jax.server.mock import create_mock_app
from dsinfer_jax.server.openapi import openapi_document

APP = create_mock_app(settings=ServerSettings(max_body=1 << 20))
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
QUIET = [hypothesis.HealthCheck.filter_too_much, hypothesis.HealthCheck.too_slow]


def fuzz(case: Any) -> None:
    """Call the application; its answer must be one that the document names, and no 5xx."""
    response = case.call(timeout=20)
    case.validate_response(response, checks=CHECKS)


@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=15, deadline=None, suppress_health_check=QUIET, derandomize=True, database=None
)
def test_requests_made_from_the_document(case: Any) -> None:
    fuzz(case)


@pytest.mark.slow
@SCHEMA.parametrize()
@hypothesis.settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
def test_many_requests_made_from_the_document(case: Any) -> None:
    fuzz(case)


def test_every_route_is_in_the_document() -> None:
    paths = {route.path for route in APP.routes}  # type: ignore[attr-defined]
    named = {
        path.replace("{name}", "{name:path}")
        for path in openapi_document(ServerSettings())["paths"]
    }
    assert paths - named == {"/", "/metrics", "/openapi.json"}
    assert named <= paths


def spoiled(raw: bytes, dice: random.Random) -> bytes:
    """A body with bytes changed, cut out, or put in."""
    data = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(data) + 1)
        kind = dice.randrange(3)
        if kind == 0:
            data[place:place] = dice.randbytes(dice.randint(1, 4))
        elif kind == 1:
            del data[place : place + dice.randint(1, 8)]
        else:
            data[place : place + 1] = bytes([dice.randrange(256)])
    return bytes(data)


@pytest.mark.parametrize("dialect", PATHS)
def test_spoiled_bodies_are_answered_in_the_shape_of_the_dialect(mock: Live, dialect: str) -> None:
    path, make = PATHS[dialect]
    tool = {"name": "f", "parameters": {"type": "object"}, "input_schema": {"type": "object"}}
    tools = [{"type": "function", "function": tool, **tool}] if dialect != "messages" else [tool]
    raw = json.dumps(make(stream=False, tools=tools)).encode()
    dice = random.Random(7)
    statuses = set()
    for _ in range(150):
        reply = mock.post(path, spoiled(raw, dice))
        statuses.add(reply.status)
        body = reply.json()
        if reply.status != 200:
            assert reply.status == 400
            assert body["error"]["message"]
            assert (body.get("type") == "error") == (dialect == "messages")
    assert statuses == {200, 400}
