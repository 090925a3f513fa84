"""Errors: status, shape and headers of each dialect."""

from __future__ import annotations

from dsinfer_jax.server.conform.client import Reply, Violation
from dsinfer_jax.server.conform.outcome import law
from dsinfer_jax.server.conform.speakers import Speaker


def check_error(speaker: Speaker, reply: Reply) -> str:
    """The message of an error response in the dialect's own shape. Raises Violation."""
    law(reply.status >= 400, f"the status is {reply.status}, not that of an error")
    kind = reply.headers.get("content-type", "none")
    law(kind.startswith("application/json"), f"an error has the content type {kind}")
    body = reply.json()
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        raise Violation(f"an error has no object 'error': {reply.body[:80]!r}")
    message = error.get("message")
    if not isinstance(message, str) or not message:
        raise Violation("an error has no message")
    law(isinstance(error.get("type"), str), "an error has no type")
    if speaker.name == "messages":
        law(body.get("type") == "error", "an error of Messages has not the type 'error'")
    if reply.status in (429, 503):
        after = reply.headers.get("retry-after", "")
        law(after.isdecimal(), f"retry-after of a {reply.status} is {after!r}")
    return message


def refused(speaker: Speaker, reply: Reply) -> Violation:
    """What to report of a request that should have been answered, once its shape is checked."""
    message = check_error(speaker, reply)
    return Violation(f"the server refused with {reply.status}: {message}")
