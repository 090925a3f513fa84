"""Run one recipe case with one package, the official one or ours, and compare with its record."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

Case = dict[str, Any]
Result = dict[str, Any]

READY = {"prompt_tokens": 10, "prompt_cache_hit_tokens": 3, "system_fingerprint": "fp"}
REQUESTS = {
    "chat": "ChatCompletionRequest",
    "responses": "ResponsesRequest",
    "messages": "MessagesRequest",
}
RESPONSES = {
    "chat": "ChatCompletionResponse",
    "responses": "ResponsesResponse",
    "messages": "MessagesResponse",
}
CALL_ID = re.compile(r"call_(\d\d+)_(ET_)?[A-Za-z0-9]{20}[0-9]{4}(?![A-Za-z0-9])")
TIME = re.compile(r'"(created|created_at|completed_at)":\d+')
# Depends on the image library's build, so the record holds it for information only.
NOT_COMPARED = ("data_sha256",)


def load_cases(path: Path) -> Iterator[Case]:
    """The cases of a file, in order."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def differences(case: Case, runner: CaseRunner) -> list[str]:
    """What differs between the record of a case and a run, one short line each."""
    try:
        result = runner.run(case)
    except Exception as error:
        return [f"unexpected {type(error).__name__}: {error}"]
    expected = case["expect"]
    # What the record does not name is not compared, except faults.
    shown = {k: v for k, v in result.items() if k in expected or k.endswith("error")}
    return compare_results(expected, shown)


def compare_results(expected: Result, got: Result) -> list[str]:
    """What differs between two results, after the substitutions of normalised."""
    return list(_compare("", normalised(expected), normalised(got)))


def normalised(value: Any) -> Any:
    """``value`` with generated call ids and times replaced, as JSON would read it back."""
    text = json.dumps(value, ensure_ascii=False)
    text = CALL_ID.sub(lambda found: f"call_{found[1]}_{found[2] or ''}*", text)
    return _without_times(json.loads(text))


def _without_times(value: Any) -> Any:
    if isinstance(value, str):
        return TIME.sub(r'"\1":0', value)
    if isinstance(value, list):
        return [_without_times(child) for child in value]
    if isinstance(value, dict):
        return {
            key: _without_times(child) for key, child in value.items() if key not in NOT_COMPARED
        }
    return value


def _compare(path: str, expected: Any, got: Any) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in [*expected, *(key for key in got if key not in expected)]:
            if key not in got:
                yield f"{path}.{key} is missing, expected {_short(expected[key])}"
            elif key not in expected:
                yield f"{path}.{key} is not expected: {_short(got[key])}"
            else:
                yield from _compare(f"{path}.{key}", expected[key], got[key])
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (left, right) in enumerate(zip(expected, got)):
            yield from _compare(f"{path}[{index}]", left, right)
    elif isinstance(expected, str) and isinstance(got, str):
        if expected != got:
            yield f"{path} {_first_difference(expected, got)}"
    elif type(expected) is not type(got) or repr(expected) != repr(got):
        yield f"{path} expected {_short(expected)}, got {_short(got)}"


def _first_difference(expected: str, got: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), None)
    at = min(len(expected), len(got)) if at is None else at
    start = max(0, at - 20)
    left, right = expected[start : at + 60], got[start : at + 60]
    return f"differs at {at}: expected {left!r}, got {right!r}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "..."


class CaseRunner:
    """Runs cases with ``package``; ``folder`` holds the tokenizer that cases may ask for."""

    def __init__(self, package: ModuleType, folder: Path) -> None:
        self._package: Any = package
        self._folder = folder

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer that cases may name, in the package's own type."""
        text = gzip.decompress((self._folder / "tokenizer_v41.json.gz").read_bytes()).decode()
        return self._package.Tokenizer.from_str(text)

    def run(self, case: Case) -> Result:
        """The fields of ``expect`` as the package gives them for this case."""
        dialect = case["dialect"]
        if dialect == "conversation":
            return self._run_conversation(case)
        if dialect == "parser":
            return self._run_parser(case)
        if dialect == "image_tokens":
            return self._run_image_tokens(case)
        if dialect == "image_resolve":
            return self._run_image_resolve(case)
        return self._run_request(case)

    def _run_conversation(self, case: Case) -> Result:
        try:
            conversation = self._conversation(case["conversation"])
        except Exception as error:
            return {"error": _error("construct", error)}
        spellings = case.get("special_tokens")
        return {
            "conversation": _show_conversation(conversation),
            **self._render(case, conversation, case["model_version"], spellings),
        }

    def _conversation(self, arguments: dict[str, Any]) -> Any:
        arguments = dict(arguments)
        messages = [self._message(message) for message in arguments.pop("messages", None) or ()]
        if arguments.get("tools") is not None:
            arguments["tools"] = [self._package.ToolDefinition(**t) for t in arguments["tools"]]
        return self._package.Conversation(messages, **arguments)

    def _message(self, arguments: dict[str, Any]) -> Any:
        package = self._package
        arguments = dict(arguments)
        kinds = {
            "system": package.SystemMessage,
            "user": package.UserMessage,
            "assistant": package.AssistantMessage,
            "tool": package.ToolMessage,
            "latest_reminder": package.LatestReminderMessage,
        }
        kind = kinds[arguments.pop("role")]
        if arguments.get("tool_calls") is not None:
            arguments["tool_calls"] = [package.ToolCall(**c) for c in arguments["tool_calls"]]
        if arguments.get("tools") is not None:
            arguments["tools"] = [package.ToolDefinition(**t) for t in arguments["tools"]]
        if arguments.get("image_sources") is not None:
            arguments["image_sources"] = [self._image_source(s) for s in arguments["image_sources"]]
        return kind(**arguments)

    def _image_source(self, arguments: dict[str, Any]) -> Any:
        arguments = dict(arguments)
        if "data_url" in arguments:
            return self._package.DataUrlImageSource(**arguments)
        if "url" in arguments:
            return self._package.UrlImageSource(**arguments)
        data = base64.b64decode(arguments.pop("data_base64"))
        return self._package.BytesImageSource(data, **arguments)

    def _options(self, case: Case) -> Any:
        package = self._package
        given = dict(case.get("options") or {})
        aliases = given.pop("model_aliases", {})
        versions = given.pop("model_versions_by_name", None)
        spellings = given.pop("special_tokens", None)
        kinds = {
            "reasoning_content_behavior": package.ReasoningContentBehavior,
            "responses_web_search": package.WebSearchBehavior,
            "messages_web_search": package.WebSearchBehavior,
        }
        for name, kind in kinds.items():
            if name in given:
                given[name] = getattr(kind, given[name])
        options = package.ConversionOptions(**given)
        if versions is not None:
            table = {name: getattr(package.ModelVersion, v) for name, v in versions.items()}
            options = options.with_model_versions_by_name(table)
        for name, version in aliases.items():
            options = options.with_model_alias(name, getattr(package.ModelVersion, version))
        if spellings is not None:
            options = options.with_special_tokens(package.SpecialTokens(**spellings))
        return options

    def _run_request(self, case: Case) -> Result:
        kind = getattr(self._package, REQUESTS[case["dialect"]])
        options = self._options(case)
        try:
            request = kind(_body(case))
        except Exception as error:
            return {"error": _error("parse", error)}
        result: Result = {"model": request.model}
        names = echo = None
        if case["dialect"] == "responses":
            echo = request.echo()
            result["echo"] = _show_echo(echo)
            try:
                names = request.namespace_tool_map(options)
                result["namespace_tool_map"] = names
            except Exception as error:
                result["namespace_tool_map_error"] = _error("namespace_tool_map", error)
        try:
            converted = request.convert(options)
        except Exception as error:
            return {**result, "error": _error("convert", error)}
        result.update(self._show_request(converted))
        if not case.get("skip_render"):
            version = result["model_version"]
            spellings = (case.get("options") or {}).get("special_tokens")
            result.update(self._render(case, converted.conversation, version, spellings))
        result["resolve_max_tokens"] = [
            [used, limit, _resolved(converted, used, limit)]
            for used, limit in case.get("resolve", ())
        ]
        if "stream_text_chunks" in case or "stream_token_chunks" in case:
            settings = case.get("stream", {})
            generator = kind.chunk_generator(
                converted, settings.get("id", "resp-1"), settings.get("model", "served-model")
            )
            if settings.get("namespace_tool_map"):
                generator = generator.with_namespace_tool_map(names)
            if settings.get("echo"):
                generator = generator.with_echo(echo)
            result.update(self._stream(case, case["dialect"], generator, converted))
        return result

    def _show_request(self, converted: Any) -> Result:
        return {
            "conversation": _show_conversation(converted.conversation),
            "inference_options": _show_inference_options(converted.inference_options),
            "parsing_options": _show_parsing_options(converted.parsing_options),
            "model_version": str(converted.model_version).partition(".")[2],
            "stream": converted.stream,
        }

    def _render(self, case: Case, conversation: Any, version: str, spellings: Any) -> Result:
        package = self._package
        v4 = version == "DeepseekV4Pro"
        encoding = package.DeepseekV4Encoding() if v4 else package.DeepseekV41Encoding()
        if spellings is not None:
            encoding = encoding.with_special_tokens(package.SpecialTokens(**spellings))
        rendered = encoding.render_conversation(conversation)
        result: Result = {
            "prompt": rendered.prompt,
            "special_ranges": [list(span) for span in rendered.special_ranges],
            "image_sources": [_show_image_source(source) for source in rendered.image_sources],
        }
        if case.get("tokenizer"):
            try:
                result["token_ids"] = encoding.with_tokenizer(self._tokenizer).encode(conversation)
            except Exception as error:
                result["encode_error"] = _error("encode", error)
        return result

    def _run_parser(self, case: Case) -> Result:
        package = self._package
        settings = case["stream"]
        conversation = package.Conversation(thinking_mode=settings.get("thinking_mode", True))
        request = package.ConversationRequest(conversation, package.ModelVersion.DeepseekV41Flash)
        dialect = case["generator"]
        generator = getattr(package, REQUESTS[dialect]).chunk_generator(
            request, settings.get("id", "resp-1"), settings.get("model", "served-model")
        )
        return self._stream(case, dialect, generator, request)

    def _stream(self, case: Case, dialect: str, generator: Any, request: Any) -> Result:
        package = self._package
        settings = case.get("stream", {})
        if "direct_messages_generator" in settings:
            generator = package.MessagesChunkGenerator(
                settings.get("id", "resp-1"),
                settings.get("model", "served-model"),
                settings["direct_messages_generator"],
            )
        if "signature" in settings:
            generator = generator.with_signature(settings["signature"])
        options = request.parsing_options
        if "parsing_options" in settings:
            options = self._parsing_options(settings["parsing_options"])
        tokenizer = self._tokenizer if case.get("tokenizer") else None
        processor = package.StreamProcessor(generator, options, tokenizer)
        ready = settings.get("ready", READY)
        batches, stream_error = self._push_all(processor, self._chunks(case, settings, ready))
        usage = ready or {}
        shown = settings.get("response", {})
        response = getattr(package, RESPONSES[dialect])(
            shown.get("id", settings.get("id", "resp-1")),
            shown.get("model", settings.get("model", "served-model")),
            0,
            usage.get("prompt_tokens", 0),
            usage.get("prompt_cache_hit_tokens", 0),
        )
        events = [event for batch in batches for event in batch]
        result: Result = {
            "events": [[event.to_json() for event in batch] for batch in batches],
            "sse_event_names": [response.sse_event_name(event) for event in events],
            "sse_done_data": response.sse_done_data(),
            "finished": processor.finished,
        }
        for event in events[: settings.get("accumulate_limit")]:
            response.accumulate(event)
        result["accumulated"] = response.to_json()
        if stream_error is not None:
            result["stream_error"] = stream_error
        return result

    def _push_all(self, processor: Any, chunks: list[Any]) -> tuple[list[list[Any]], Any]:
        """The events of each push, and where a push failed. ``None`` stands for ``finish()``."""
        batches = []
        for number, chunk in enumerate(chunks):
            try:
                batches.append(processor.finish() if chunk is None else processor.push(chunk))
            except Exception as error:
                return batches, _error(f"push {number}" if chunk is not None else "finish", error)
        return batches, None

    def _chunks(self, case: Case, settings: Result, ready: Any) -> list[Any]:
        make = self._package.InferenceChunk
        chunks = []
        if ready is not None:
            usage = self._package.PromptUsage(
                prompt_tokens=ready.get("prompt_tokens", 0),
                prompt_cache_hit_tokens=ready.get("prompt_cache_hit_tokens", 0),
            )
            fingerprint = ready.get("system_fingerprint")
            chunks.append(make.ready(prompt_usage=usage, system_fingerprint=fingerprint))
        for piece in case.get("stream_text_chunks", ()):
            text, count = piece if isinstance(piece, list) else (piece, None)
            chunks.append(
                make.text(text, settings.get("token_count", 1) if count is None else count)
            )
        logprobs = case.get("stream_logprobs")
        for position, ids in enumerate(case.get("stream_token_chunks", ())):
            chunks.append(make.tokens(ids, _logprobs(logprobs and logprobs[position])))
        finish = settings.get("finish", "Stop")
        if finish is not None:
            finish = make.finish(getattr(self._package.InferenceFinishReason, finish))
        return [*chunks, finish]

    def _parsing_options(self, given: Result) -> Any:
        package = self._package
        given = dict(given)
        if given.get("thinking_initial_stage") is not None:
            stage = given["thinking_initial_stage"]
            given["thinking_initial_stage"] = getattr(package.ThinkingInitialStage, stage)
        if given.get("special_tokens") is not None:
            given["special_tokens"] = package.SpecialTokens(**given["special_tokens"])
        return package.ParsingOptions(**given)

    def _run_image_tokens(self, case: Case) -> Result:
        package = self._package
        counts = [
            package.MultiModalData([package.ImageInfo(b"", w, h)]).image_token_adjustment()
            for w, h in case["sizes"]
        ]
        return {"image_token_adjustment": counts}

    def _run_image_resolve(self, case: Case) -> Result:
        package = self._package
        resolver = package.ImageResolver(
            package.ReqwestImageFetcher(), package.OpenCvImagePreprocessor()
        )
        quota = package.ImageQuota()
        calls = []
        for sources in case["calls"]:
            try:
                images = resolver.resolve([self._image_source(s) for s in sources], quota)
                shown: Result = {
                    "images": [
                        {
                            "width": image.width,
                            "height": image.height,
                            "data_sha256": hashlib.sha256(image.data).hexdigest(),
                        }
                        for image in images.images
                    ],
                    "image_token_adjustment": images.image_token_adjustment(),
                }
            except Exception as error:
                shown = {"error": _error("resolve", error)}
            calls.append({**shown, "quota": [quota.image_count(), quota.byte_size()]})
        return {"calls": calls}


def _body(case: Case) -> Any:
    if "request_base64" in case:
        return base64.b64decode(case["request_base64"])
    return case["request_text"] if "request_text" in case else case["request"]


def _resolved(converted: Any, used: int, limit: int) -> Any:
    try:
        return converted.resolve_max_tokens(used, limit)
    except Exception as error:
        return _error("resolve_max_tokens", error)


def _error(stage: str, error: Exception) -> Result:
    shown: Result = {"stage": stage, "type": type(error).__name__, "message": str(error)}
    for name, attribute in (
        ("status", "status_code"),
        ("body", "body"),
        ("kind", "kind"),
        ("is_retryable", "is_retryable"),
    ):
        if hasattr(error, attribute):
            shown[name] = getattr(error, attribute)
    return shown


def _logprobs(logprobs: Any) -> Any:
    if logprobs is None:
        return None
    return [(logprob, [tuple(entry) for entry in top]) for logprob, top in logprobs]


def _show_echo(echo: Any) -> Result:
    names = ("instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "user")
    return {name: getattr(echo, name) for name in names}


def _show_conversation(conversation: Any) -> Result:
    return {
        "messages": [_show_message(message) for message in conversation.messages],
        "thinking_mode": conversation.thinking_mode,
        "reasoning_effort": conversation.reasoning_effort,
        "tools": [_show_tool(tool) for tool in conversation.tools],
        "tool_choice": conversation.tool_choice,
        "response_format": conversation.response_format,
        "response_schema": conversation.response_schema,
        "response_regex": conversation.response_regex,
    }


def _show_message(message: Any) -> Result:
    shown: Result = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        shown["reasoning_content"] = message.reasoning_content
        calls = message.tool_calls
        shown["tool_calls"] = calls and [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls
        ]
        shown["prefix"] = message.prefix
    if message.role == "tool":
        shown["tool_call_id"] = message.tool_call_id
    if message.role == "system" and message.tools is not None:
        shown["tools"] = [_show_tool(tool) for tool in message.tools]
    if message.image_sources:
        shown["image_sources"] = [_show_image_source(source) for source in message.image_sources]
    return shown


def _show_tool(tool: Any) -> Result:
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return {name: getattr(tool, name) for name in names}


def _show_image_source(source: Any) -> Result:
    shown: Result = {"kind": source.kind, "detail": source.detail, "path": source.path}
    if source.kind == "bytes":
        shown["data_base64"] = base64.b64encode(source.data).decode()
    else:
        shown[source.kind] = getattr(source, source.kind)
    return shown


def _show_inference_options(options: Any) -> Result:
    constraint = options.output_constraint
    names = ("max_tokens", "temperature", "top_p", "logprobs", "top_logprobs", "seed")
    return {
        **{name: getattr(options, name) for name in names},
        "output_constraint": constraint and {"kind": constraint.kind, "schema": constraint.schema},
    }


def _show_parsing_options(options: Any) -> Result:
    stage = options.thinking_initial_stage
    return {
        "parse_tool_calls": options.parse_tool_calls,
        "starts_in_tool_calls": options.starts_in_tool_calls,
        "parse_json_output": options.parse_json_output,
        "thinking_initial_stage": stage and str(stage).partition(".")[2],
        "stop_sequences": options.stop_sequences,
    }
