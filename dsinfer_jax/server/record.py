"""What is known about one request for the log, the metrics and traces; no text of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from dsinfer_jax.server.answer import Answer
from dsinfer_jax.server.dialects import DialectName

CLIENT_GONE = 499  # never sent: nobody is there to read it


@dataclass
class RequestRecord:
    """One request.

    Attributes:
        id: of the request, as the client is told.
        dialect, path, method: what was asked for.
        tenant: owner of the key.
        status: HTTP status; 499 if the client left. A stream that failed later keeps its 200.
        error: the sentence of an error, also of one that ended a stream.
        response_id, model, stream, choices: of a request that could be read.
        prompt_tokens, cached_tokens, output_tokens: counted so far.
        finish_reasons: one for each choice that ended.
        seconds, first_output_seconds: since the request began.
        events: of a stream.
    """

    id: str
    dialect: DialectName
    method: str
    path: str
    tenant: str = ""
    status: int = 0
    error: str | None = None
    response_id: str | None = None
    model: str | None = None
    stream: bool = False
    choices: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0
    first_output_seconds: float | None = None
    events: int = 0
    began: float = field(default_factory=monotonic)

    @property
    def outcome(self) -> str:
        """`ok`, `client_gone`, `refused` (status 4xx) or `failed`."""
        if self.status == CLIENT_GONE:
            return "client_gone"
        if self.error is None:
            return "ok"
        return "refused" if 400 <= self.status < 500 else "failed"

    def take_answer(self, answer: Answer) -> None:
        """Note what an answer has come to."""
        self.prompt_tokens = answer.prompt_tokens
        self.cached_tokens = answer.cached_tokens
        self.output_tokens = answer.output_tokens
        self.finish_reasons = answer.finish_reasons
        if answer.first_output is not None:
            self.first_output_seconds = answer.first_output - self.began

    def end(self) -> None:
        """Note how long the request took."""
        self.seconds = monotonic() - self.began

    def to_fields(self) -> dict[str, Any]:
        """The fields of a log line; those without a value are left out."""
        fields = {name: value for name, value in vars(self).items() if name != "began"}
        fields["outcome"] = self.outcome
        return {name: value for name, value in fields.items() if value not in (None, "", [])}
