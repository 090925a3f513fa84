"""From a request body to jobs for the source and processors for their output."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsinfer_jax.recipe import (
    ConversationRequest,
    DeepseekV4Encoding,
    DeepseekV41Encoding,
    ModelVersion,
    RenderedPrompt,
    StreamProcessor,
    Tokenizer,
)
from dsinfer_jax.recipe.encoding import encode_prompt
from dsinfer_jax.recipe.store import ResponseStore, with_history
from dsinfer_jax.server.dialects import RESPONSES, Dialect
from dsinfer_jax.server.errors import RequestError
from dsinfer_jax.server.settings import ServerSettings
from dsinfer_jax.server.source import InferenceJob

ENCODINGS = {
    ModelVersion.DeepseekV4Pro: DeepseekV4Encoding(),
    ModelVersion.DeepseekV41Flash: DeepseekV41Encoding(),
}


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, how long an answer is of use, and what the request's own headers say."""

    tenant: str
    deadline: float
    hints: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can run.

    Attributes:
        dialect, id, model: of the response.
        request: converted.
        jobs: one for each choice.
        processors: read the output of the job in the same place.
        body: of a Responses request, as the client sent it.
    """

    dialect: Dialect
    id: str
    model: str
    request: ConversationRequest
    jobs: list[InferenceJob]
    processors: list[StreamProcessor]
    body: dict[str, Any] | None = None


class Preparer:
    """Reads bodies of all dialects for one tokenizer and one set of settings."""

    def __init__(self, settings: ServerSettings, tokenizer: Tokenizer) -> None:
        self._settings = settings
        self._options = settings.conversion_options()
        self._tokenizer = tokenizer

    def prepare(
        self, dialect: Dialect, raw: bytes, asker: Asker, store: ResponseStore | None
    ) -> Prepared:
        """Everything that an answer needs. Raises RequestError and ConversionError."""
        read = self._read(dialect, raw)
        body = json.loads(raw) if dialect is RESPONSES else None
        if not isinstance(body, dict):  # a body may also be a list of its members
            body = None
        elif body.get("previous_response_id") is not None:
            read = self._read(dialect, self._with_history(body, store))
        model = read.model
        namespaces = read.namespace_tool_map(self._options) if dialect is RESPONSES else {}
        request = read.convert(self._options)
        prompt, ids = self._encode(request)
        id = dialect.id_prefix + secrets.token_hex(16)
        limit = request.resolve_max_tokens(len(ids), self._settings.context_limit)
        generator = dialect.request.chunk_generator(request, id, model)
        if namespaces:
            generator = generator.with_namespace_tool_map(namespaces)
        choices = request.choices
        generators = generator.with_choices(choices) if choices > 1 else [generator]
        processors = [
            StreamProcessor(each, request.parsing_options, self._tokenizer) for each in generators
        ]
        jobs = [
            InferenceJob(
                id=id,
                choice=choice,
                request=request,
                prompt=prompt,
                prompt_ids=ids,
                images=None,
                max_tokens=limit,
                deadline=asker.deadline,
                tenant=asker.tenant,
                hints=asker.hints,
            )
            for choice in range(choices)
        ]
        return Prepared(dialect, id, model, request, jobs, processors, body)

    def count(self, dialect: Dialect, raw: bytes) -> int:
        """Tokens of the prompt that a body makes."""
        return len(self._encode(self._read(dialect, raw).convert(self._options))[1])

    def _read(self, dialect: Dialect, body: bytes | dict[str, Any]) -> Any:
        try:
            return dialect.request(body)
        except (ValueError, OverflowError, RecursionError) as error:
            raise RequestError(400, str(error)) from None

    def _with_history(self, body: dict[str, Any], store: ResponseStore | None) -> dict[str, Any]:
        """The body with what its `previous_response_id` stands for in front of its input."""
        if not isinstance(body["previous_response_id"], str):
            raise RequestError(400, "previous_response_id must be the id of a response.")
        if store is None:
            raise RequestError(
                400, "previous_response_id was given, but this server keeps no responses."
            )
        return with_history(body, store)

    def _encode(self, request: ConversationRequest) -> tuple[RenderedPrompt, list[int]]:
        encoding = ENCODINGS[request.model_version]
        prompt = encoding.render_conversation(request.conversation)
        if prompt.image_sources:
            raise RequestError(400, "This server does not read images; send text only.")
        return prompt, encode_prompt(prompt, self._tokenizer)
