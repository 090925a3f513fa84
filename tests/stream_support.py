"""Random model outputs, and either package run over them: both have the same names."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

# Byte-level, with the control tokens of the markup; read by both packages.
TOKENIZER_JSON = (Path(__file__).parent / "data/tokenizer_1024.json").read_text(encoding="utf-8")

DSML = "｜DSML｜"
DIALECTS = ("chat", "responses", "messages")
CUSTOM_TOOL = "apply_patch"
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
    def joined(self) -> list[dict[str, Any]]:
        """All events in order, read."""
        return [json.loads(event) for push in self.events for event in push]

    @property
    def body(self) -> dict[str, Any]:
        """The accumulated body, read."""
        return json.loads(self.accumulated)


def normalise(text: str) -> str:
    """Random call ids and times replaced."""
    return _TIME.sub(r'"\1":0', _CALL_ID.sub(r"call_\1_\2*", text))


class Streams:
    """Runs of one package, official or ours."""

    def __init__(self, package: ModuleType, tokenizer_json: str | None = None) -> None:
        self._package: Any = package
        self.tokenizer: Any = None
        if tokenizer_json is not None:
            self.tokenizer = self._package.Tokenizer.from_str(tokenizer_json)
        self._converted = {
            (dialect, thinking): self._convert(dialect, thinking)
            for dialect in ("chat", "responses")
            for thinking in (False, True)
        }

    def _convert(self, dialect: str, thinking: bool) -> Any:
        """A request with a function, a custom tool, client tool search and a namespace."""
        body: dict[str, Any] = {"model": "DeepSeek-V4.1-Flash"}
        effort = "high" if thinking else "none"
        if dialect == "chat":
            body |= {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": effort}
            request = self._package.ChatCompletionRequest(body)
        else:
            schema = {"type": "object", "properties": {}}
            function = {"type": "function", "name": "find", "parameters": schema}
            body |= {
                "input": "x",
                "reasoning": {"effort": effort},
                "tools": [
                    {"type": "custom", "name": CUSTOM_TOOL},
                    {"type": "tool_search", "execution": "client", "parameters": schema},
                    {"type": "namespace", "name": "crm", "tools": [function]},
                ],
            }
            request = self._package.ResponsesRequest(body)
        return request.convert(self._package.ConversionOptions())

    def generator(self, dialect: str, thinking: bool) -> Any:
        """A generator of response "I" and model "M"."""
        package = self._package
        if dialect == "messages":
            return package.MessagesChunkGenerator("I", "M", thinking)
        kind = package.ChatCompletionRequest if dialect == "chat" else package.ResponsesRequest
        return kind.chunk_generator(self._converted[dialect, thinking], "I", "M")

    def options(self, run: Run, **more: Any) -> Any:
        package = self._package
        stage = run.options.get("thinking_initial_stage")
        return package.ParsingOptions(
            **{
                **run.options,
                "thinking_initial_stage": stage and getattr(package.ThinkingInitialStage, stage),
                "special_tokens": package.SpecialTokens(**run.spellings),
            },
            **more,
        )

    def processor(self, run: Run, **more: Any) -> Any:
        """A processor of the run; `more` are further parsing options."""
        generator = self.generator(run.dialect, run.thinking)
        return self._package.StreamProcessor(generator, self.options(run, **more), self.tokenizer)

    def response(self, dialect: str) -> Any:
        package = self._package
        kind = {
            "chat": package.ChatCompletionResponse,
            "responses": package.ResponsesResponse,
            "messages": package.MessagesResponse,
        }[dialect]
        return kind("I", "M", 0, 10, 3)

    def pushes(self, run: Run) -> list[Any]:
        """The chunks of the run: ready, and its pieces.

        A piece is text, ids, ids with log probabilities, or `None` for one more ready chunk.
        """
        chunk, reasons = self._package.InferenceChunk, self._package.InferenceFinishReason
        pushes = []
        if run.ready:
            usage = self._package.PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=3)
            pushes.append(chunk.ready(prompt_usage=usage, system_fingerprint="fp"))
        for piece in run.pieces:
            if isinstance(piece, str):
                pushes.append(chunk.text(piece, 1))
            elif isinstance(piece, tuple):
                pushes.append(chunk.tokens(*piece))
            elif piece is None:
                usage = self._package.PromptUsage(prompt_tokens=99)
                pushes.append(chunk.ready(prompt_usage=usage, system_fingerprint="late"))
            else:
                pushes.append(chunk.tokens(piece))
        if run.finish is not None:
            pushes.append(chunk.finish(getattr(reasons, run.finish)))
        return pushes

    def run(self, run: Run, processor: Any = None, share: float = 1.0) -> Result:
        """Push everything, finish, accumulate; `share` of the events, always the same ones."""
        processor = processor or self.processor(run)
        events: list[list[Any]] = []
        error = None
        try:
            for push in self.pushes(run):
                events.append(processor.push(push))
            events.append(processor.finish())
        except RuntimeError as fault:
            error = f"{len(events)}: {fault}"
        response = self.response(run.dialect)
        written = [[normalise(event.to_json()) for event in push] for push in events]
        rng = random.Random(len(events))
        for push in events:
            for event in push:
                if share == 1.0 or rng.random() < share:
                    response.accumulate(event)
        return Result(written, normalise(response.to_json()), error, processor.finished)


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
