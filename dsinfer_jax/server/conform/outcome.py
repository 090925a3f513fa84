"""What an answer came to, the same for all dialects, and the laws that hold for all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dsinfer_jax.recipe import SpecialToken
from dsinfer_jax.server.conform.client import Violation

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MARKUP = (SpecialToken.Dsml.default_str(), SpecialToken.ThinkingEnd.default_str())


@dataclass
class Usage:
    """Token counts. `reasoning` is None where the dialect does not report it."""

    prompt: int
    cached: int
    output: int
    reasoning: int | None = None


@dataclass
class Call:
    """A tool call: `arguments` is JSON as text."""

    id: str
    name: str
    arguments: str


@dataclass
class Outcome:
    """An answer.

    Attributes:
        finish: `stop`, `length`, `tool_calls`, `content_filter`, or None if it did not end.
        id: of the response.
        longest_gap: of its stream, in seconds.
    """

    id: str = ""
    reasoning: str = ""
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None
    usage: Usage | None = None
    longest_gap: float = 0.0


def law(holds: bool, sentence: str) -> None:
    """Violation with the sentence unless the law holds."""
    if not holds:
        raise Violation(sentence)


@dataclass(frozen=True)
class Expectation:
    """What a server is expected to do.

    Attributes:
        sense: its model writes text that makes sense; otherwise laws about text are left out.
        limit: of output tokens where a case does not say.
        longest_gap: of silence in a stream, in seconds.
    """

    sense: bool = True
    limit: int = 1_024
    longest_gap: float = 10.0


def check_outcome(outcome: Outcome, expected: Expectation) -> None:
    """The laws of an answer that says it is complete."""
    law(outcome.finish is not None, "the answer has no finish reason")
    if expected.sense:
        _check_text(outcome)
    whole = outcome.finish != "length"
    for call in outcome.calls:
        law(bool(call.id), f"a call of {call.name!r} has no id")
        law(not whole or _is_object(call.arguments),
            f"the arguments of a call of {call.name!r} are no JSON object: "
            f"{call.arguments[:80]!r}")  # fmt: skip
    ids = [call.id for call in outcome.calls]
    law(len(set(ids)) == len(ids), f"calls share an id: {ids}")
    if whole and outcome.finish != "content_filter":
        law((outcome.finish == "tool_calls") == bool(outcome.calls),
            f"the finish reason is {outcome.finish!r} with {len(ids)} calls")  # fmt: skip
    # all that noise has may be bytes of a character that does not end, or its stop sequence
    _check_usage(outcome.usage, fewest=int(expected.sense))
    law(outcome.longest_gap <= expected.longest_gap,
        f"the stream was silent for {outcome.longest_gap:.1f} seconds; a client must hear "
        f"something every {expected.longest_gap:g}")  # fmt: skip


def _check_text(outcome: Outcome) -> None:
    for name, text in (("reasoning", outcome.reasoning), ("content", outcome.text)):
        law(REPLACEMENT not in text, f"the {name} holds a replacement character")
        for mark in MARKUP:
            law(mark not in text, f"the {name} holds the marker {mark!r}")
    something = bool(outcome.text or outcome.calls or outcome.reasoning)
    law(something or outcome.finish == "length", "the answer is empty")
    usage = outcome.usage
    # Reasoning tokens are officially counted by encoding the text again: for noise that is more.
    if usage is not None and usage.reasoning is not None:
        law(0 <= usage.reasoning <= usage.output,
            f"{usage.reasoning} of {usage.output} output tokens are reasoning")  # fmt: skip


def _check_usage(usage: Usage | None, fewest: int) -> None:
    if usage is None:
        raise Violation("the answer has no usage")
    law(usage.prompt > 0, f"the prompt has {usage.prompt} tokens")
    law(0 <= usage.cached <= usage.prompt,
        f"{usage.cached} of {usage.prompt} prompt tokens are cached")  # fmt: skip
    law(usage.output >= fewest, f"the output has {usage.output} tokens")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
