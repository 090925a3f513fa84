"""Random model outputs, and both packages run over them side by side."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

from dsinfer_jax.recipe.chat_events import (
    ChatCompletionChunkGenerator,
    ChatCompletionResponse,
    ChatSettings,
)
from dsinfer_jax.recipe.inference import (
    InferenceChunk,
    InferenceFinishReason,
    ParsingOptions,
    PromptUsage,
    ThinkingInitialStage,
)
from dsinfer_jax.recipe.messages_events import MessagesChunkGenerator, MessagesResponse
from dsinfer_jax.recipe.responses_events import (
    ResponsesChunkGenerator,
    ResponsesResponse,
    ResponsesSettings,
)
from dsinfer_jax.recipe.responses_object import ResponsesEcho
from dsinfer_jax.recipe.special_tokens import SpecialTokens
from dsinfer_jax.recipe.stream import StreamProcessor

DSML = "｜DSML｜"
DIALECTS = ("chat", "responses", "messages")
CUSTOM_TOOL = "apply_patch"
NAMESPACES = {"crm::find": ("crm", "find")}
_CALL_ID = re.compile(r"call_(\d\d+)_(ET_)?[A-Za-z0-9]{20}[0-9]{4}(?![A-Za-z0-9])")
_TIME = re.compile(r'"(created|created_at|completed_at)":\d+')

# Pieces of the grammar of model output, whole and broken.
SOUP = [
    "</think>", "<think>", "\n", "\n\n", "<", "</", "text", " ", "é", "世界", "😀", '"', "\\", "\t",
    f"<{DSML}", f"</{DSML}", DSML, f"<{DSML} calls>", f"<{DSML}tool_calls>", f"</{DSML} calls>",
    f"</{DSML}tool_calls>", f'<{DSML} invoke name="f">', f'<{DSML}invoke name="crm::find">',
    'invoke name="', f'<{DSML} invoke name="apply_patch">', f'<{DSML} invoke name="tool_search">',
    f"</{DSML} invoke>", f"</{DSML}invoke>", "parameter name=", f'<{DSML} parameter name="a" ',
    f'<{DSML} parameter name="input" string="true">', f'<{DSML}parameter name="n" string="false">',
    'string="true">', 'string="false">', 'true">', 'false">', f"</{DSML} parameter>",
    f"</{DSML}parameter>", "1", '{"k": [1, null]}', "{", "}", "[", "]", "```json\n", "```\n",
    "\n```", "```", "STOP", "ST", "OP", ";;", ";", "`", "\x00", "<｜end▁of▁sentence｜>", "name",
    ">", "\ufffd", "\u2028", "\x7f",
]  # fmt: skip
STOPS = ["STOP", ";;", "ST", "\n\n", "</think>", "TOP", "<", "x", "``", "é", "\n", ""]
VALUES = [
    ("true", 'Paris "x"\n\\'), ("true", ""), ("true", "1 < 2 </b>"),
    ("false", "3"), ("false", '{"a": [1, {}]}'), ("false", "{oops"), ("false", ""),
]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One stream: how it is read and in which pieces it arrives (strings or lists of ids)."""

    dialect: str
    thinking: bool
    pieces: list[Any]
    options: dict[str, Any]
    finish: str | None = "Stop"
    ready: bool = True
    spellings: dict[str, str] = field(default_factory=dict)


def random_output(rng: random.Random, longest: int = 14) -> str:
    """Half of the time soup, half of the time a well-formed answer with a few spoons of soup."""
    if rng.random() < 0.5:
        return "".join(rng.choices(SOUP, k=rng.randint(0, longest)))
    return well_formed_output(rng)


def well_formed_output(rng: random.Random) -> str:
    gap = "" if rng.random() < 0.5 else " "
    word = "calls" if gap else "tool_calls"

    def spoon() -> str:
        return "".join(rng.choices(SOUP, k=rng.choice([0, 0, 0, 0, 1, 2])))

    parts = [spoon(), rng.choice(["", "plan", "\nplan\n"]), rng.choice(["", "</think>\n\n"])]
    parts += [rng.choice(["", "text", "a\n\nb "]), spoon()]
    if rng.random() < 0.7:
        parts.append(f"\n\n<{DSML}{gap}{word}>\n")
        for _ in range(rng.randint(0, 3)):
            name = rng.choice(["f", "crm::find", "apply_patch", "tool_search", "other::x"])
            parts.append(f'<{DSML}{gap}invoke name="{name}">\n')
            for _ in range(rng.randint(0, 3)):
                key = rng.choice(["a", "input", "é", "x y", 'q"'])
                kind, value = rng.choice(VALUES)
                parts.append(f'<{DSML}{gap}parameter name="{key}" string="{kind}">{value}')
                parts.append(f"{spoon()}</{DSML}{gap}parameter>\n{spoon()}")
            parts.append(f"</{DSML}{gap}invoke>\n{spoon()}")
        parts.append(f"</{DSML}{gap}{word}>{spoon()}")
    return "".join(parts)


def random_cuts(rng: random.Random, whole: Any) -> list[Any]:
    """The text or the list of ids in pieces, a few of them empty."""
    if not whole:
        return []
    most = len(whole)
    count = rng.choice([0, 1, 2, 5, min(20, most), most])
    cuts = sorted(rng.choices(range(most + 1), k=min(count, most)))
    return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, most])]


def random_run(rng: random.Random, encode: Any = None) -> Run:
    """A random stream; `encode` (text to ids) makes it one of token ids."""
    stage = rng.choice(["ReasoningStart", "ReasoningContinuation", "ContentContinuation", None])
    options: dict[str, Any] = {
        "parse_tool_calls": rng.random() < 0.8,
        "starts_in_tool_calls": rng.random() < 0.1,
        "parse_json_output": rng.random() < 0.2,
        "thinking_initial_stage": stage,
        "stop_sequences": rng.choices(STOPS, k=rng.choice([0, 0, 1, 2])),
    }
    spellings = {}
    if rng.random() < 0.1:
        # Not the empty spelling: the official package can crash on it.
        spellings = {"dsml": rng.choice(["[D]", "\n", "<<", "`"])}
        spellings["thinking_end"] = rng.choice(["[/t]", "\n", "<</t>", "\n\n", "`"])
    output = random_output(rng)
    pieces = random_cuts(rng, output if encode is None else encode(output))
    return Run(
        dialect=rng.choice(DIALECTS),
        thinking=rng.random() < 0.7,
        pieces=pieces,
        options=options,
        finish=rng.choice(["Stop", "Stop", "Length", "ContentFilter", None]),
        ready=rng.random() < 0.9,
        spellings=spellings,
    )


@dataclass
class Result:
    """What came out: the events of each push and of the finish, and the accumulated body."""

    events: list[list[str]]
    accumulated: str
    error: str | None
    finished: bool

    @property
    def joined(self) -> list[str]:
        return [event for push in self.events for event in push]


def normalise(text: str) -> str:
    """Random call ids and times replaced."""
    return _TIME.sub(r'"\1":0', _CALL_ID.sub(r"call_\1_\2*", text))


def our_generator(run: Run) -> Any:
    """A generator as a converted request with the tools of the fuzz makes it."""
    if run.dialect == "chat":
        return ChatCompletionChunkGenerator._of(
            ChatSettings("I", "M", run.thinking, False, created=0, null_usage=True)
        )
    if run.dialect == "messages":
        return MessagesChunkGenerator("I", "M", run.thinking)
    return ResponsesChunkGenerator._of(
        ResponsesSettings(
            "I", "M", run.thinking, 0, ResponsesEcho(), frozenset({CUSTOM_TOOL}), True, NAMESPACES
        )
    )


def run_ours(run: Run, tokenizer: Any = None, strict: bool = False) -> tuple[Result, Any]:
    """Our package over a run; the second value is the processor."""
    stage = run.options["thinking_initial_stage"]
    options = ParsingOptions(
        **{
            **run.options,
            "thinking_initial_stage": stage and getattr(ThinkingInitialStage, stage),
            "special_tokens": SpecialTokens(**run.spellings),
        },
        strict=strict,
    )
    processor = StreamProcessor(our_generator(run), options, tokenizer)
    response_type = {
        "chat": ChatCompletionResponse,
        "responses": ResponsesResponse,
        "messages": MessagesResponse,
    }[run.dialect]
    response = response_type("I", "M", 0, 10, 3)
    result = _drive(run, processor, response, InferenceChunk, PromptUsage, InferenceFinishReason)
    return result, processor


def _drive(run: Run, processor: Any, response: Any, chunk: Any, usage: Any, reasons: Any) -> Result:
    """The same calls for either package."""
    pushes = []
    if run.ready:
        pushes.append(
            chunk.ready(
                prompt_usage=usage(prompt_tokens=10, prompt_cache_hit_tokens=3),
                system_fingerprint="fp",
            )
        )
    for piece in run.pieces:
        pushes.append(chunk.text(piece, 1) if isinstance(piece, str) else chunk.tokens(*piece))
    if run.finish is not None:
        pushes.append(chunk.finish(getattr(reasons, run.finish)))
    events: list[list[Any]] = []
    error = None
    try:
        for push in pushes:
            events.append(processor.push(push))
        events.append(processor.finish())
    except RuntimeError as fault:
        error = f"{len(events)}: {fault}"
    written = [[normalise(event.to_json()) for event in push] for push in events]
    for push in events:
        for event in push:
            response.accumulate(event)
    return Result(written, normalise(response.to_json()), error, processor.finished)


class Official:
    """The official package over the same runs."""

    def __init__(self, package: Any, tokenizer_text: str | None = None) -> None:
        self._package = package
        self._tokenizer = None
        if tokenizer_text is not None:
            self._tokenizer = package.Tokenizer.from_str(tokenizer_text)
        self._responses = {thinking: self._convert_responses(thinking) for thinking in (0, 1)}

    def _convert_responses(self, thinking: int) -> Any:
        request = self._package.ResponsesRequest(
            {
                "model": "DeepSeek-V4.1-Flash",
                "input": "x",
                "reasoning": {"effort": "high" if thinking else "none"},
                "tools": [
                    {"type": "custom", "name": CUSTOM_TOOL},
                    {"type": "tool_search", "execution": "client"},
                    {"type": "namespace", "name": "crm",
                     "tools": [{"type": "function", "name": "find"}]},
                ],
            }
        )  # fmt: skip
        return request.convert(self._package.ConversionOptions())

    def _generator(self, run: Run) -> Any:
        package = self._package
        if run.dialect == "messages":
            return package.MessagesChunkGenerator("I", "M", run.thinking)
        if run.dialect == "responses":
            generator = package.ResponsesRequest.chunk_generator(
                self._responses[int(run.thinking)], "I", "M"
            )
            return generator.with_echo(package.ResponsesEcho())
        conversation = package.ConversationRequest(
            package.Conversation([], thinking_mode=run.thinking),
            package.ModelVersion.DeepseekV41Flash,
        )
        return package.ChatCompletionRequest.chunk_generator(conversation, "I", "M")

    def run(self, run: Run, *, with_tokenizer: bool = False) -> Result:
        package = self._package
        stage = run.options["thinking_initial_stage"]
        options = package.ParsingOptions(
            **{
                **run.options,
                "thinking_initial_stage": stage and getattr(package.ThinkingInitialStage, stage),
                "special_tokens": package.SpecialTokens(**run.spellings),
            }
        )
        processor = package.StreamProcessor(
            self._generator(run), options, self._tokenizer if with_tokenizer else None
        )
        response_type = {
            "chat": package.ChatCompletionResponse,
            "responses": package.ResponsesResponse,
            "messages": package.MessagesResponse,
        }[run.dialect]
        return _drive(
            run,
            processor,
            response_type("I", "M", 0, 10, 3),
            package.InferenceChunk,
            package.PromptUsage,
            package.InferenceFinishReason,
        )


def describe_difference(run: Run, ours: Result, theirs: Result) -> str:
    """The run and the first push whose events differ."""
    lines = [repr(run)]
    for number, (mine, official) in enumerate(zip(ours.events, theirs.events)):
        if mine != official:
            lines += [f"push {number}", "ours:", *mine, "official:", *official]
            break
    if ours.accumulated != theirs.accumulated:
        lines += ["ours:", ours.accumulated, "official:", theirs.accumulated]
    lines.append(f"errors: {ours.error!r} {theirs.error!r}")
    return "\n".join(lines)
