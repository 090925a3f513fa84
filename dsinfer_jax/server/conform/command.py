"""`python -m dsinfer_jax.server conform URL`: run the cases and print a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from dsinfer_jax.server.conform.cases import (
    CASES,
    Questioner,
    Skipped,
    same_prompt_in_all_dialects,
)
from dsinfer_jax.server.conform.client import Target, Violation
from dsinfer_jax.server.conform.outcome import Expectation
from dsinfer_jax.server.conform.speakers import SPEAKERS

DEFAULT = Expectation()


@dataclass(frozen=True)
class Finding:
    """What one case came to: `ok`, `FAIL` or `skip`, and why."""

    result: str
    dialect: str
    case: str
    reason: str
    seconds: float

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        name = f"{self.dialect} {self.case}"
        return f"{self.result:<4} {name:<32} {self.seconds:6.2f} s{reason}"


def run_cases(
    target: Target,
    model: str,
    report: Callable[[Finding], None],
    only: Sequence[str] = (),
    expected: Expectation = DEFAULT,
) -> list[Finding]:
    """Run all cases in all dialects, or those named."""
    findings = []

    def judge(dialect: str, name: str, case: Callable[[], None]) -> None:
        finding = _judge(dialect, name, case)
        findings.append(finding)
        report(finding)

    for speaker in SPEAKERS:
        run = Questioner(target, speaker, model, expected)
        for case in CASES:
            if not only or case.__name__ in only:
                judge(speaker.name, case.__name__, partial(case, run))
    if not only or same_prompt_in_all_dialects.__name__ in only:
        judge("all", "same_prompt", partial(same_prompt_in_all_dialects, target, model, expected))
    return findings


def _judge(dialect: str, name: str, case: Callable[[], None]) -> Finding:
    began = monotonic()
    result, reason = "ok", ""
    try:
        case()
    except Skipped as error:
        result, reason = "skip", str(error)
    except Violation as error:
        result, reason = "FAIL", str(error)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        result, reason = "FAIL", f"a member is missing or of the wrong type: {error!r}"
    return Finding(result, dialect, name, reason, monotonic() - began)


def first_model(target: Target) -> str:
    """The first model that the server lists. Raises Violation."""
    reply = target.ask("GET", "/v1/models")
    if reply.status != 200:
        raise Violation(f"/v1/models has the status {reply.status}; name a model with --model")
    try:
        return reply.json()["data"][0]["id"]
    except (KeyError, TypeError, IndexError):
        raise Violation("/v1/models lists no model; name one with --model") from None


def conform(arguments: Sequence[str]) -> int:
    """The command. 0: every law holds; 1: some do not; 2: the server cannot be checked."""
    parsed = _parser().parse_args(arguments)
    headers = dict(header.split(":", 1) for header in parsed.header)
    if parsed.api_key:
        headers |= {"authorization": f"Bearer {parsed.api_key}", "x-api-key": parsed.api_key}
    try:
        target = Target(parsed.url, headers, parsed.timeout)
        model = parsed.model or first_model(target)
    except (Violation, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"checking {parsed.url} with the model {model}")
    expected = Expectation(sense=not parsed.noise, limit=parsed.max_tokens)

    def report(finding: Finding) -> None:
        print(finding, flush=True)

    findings = run_cases(target, model, report, parsed.only, expected)
    number = {result: sum(finding.result == result for finding in findings)
              for result in ("ok", "FAIL", "skip")}  # fmt: skip
    print(f"{number['ok']} passed, {number['FAIL']} failed, {number['skip']} skipped")
    return 1 if number["FAIL"] else 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m dsinfer_jax.server conform",
        description="Check a server of Chat Completions, Responses and Messages.",
    )
    made.add_argument("url", help="up to, but without, /v1")
    made.add_argument("--model", help="default: the first that the server lists")
    made.add_argument("--api-key", help="sent as both families of SDKs do")
    made.add_argument("--header", action="append", default=[], help="NAME:VALUE, repeatable")
    made.add_argument("--timeout", type=float, default=60.0, help="seconds for each answer")
    made.add_argument(
        "--max-tokens", type=int, default=DEFAULT.limit, help="of an answer, if a case does not say"
    )
    made.add_argument(
        "--noise", action="store_true", help="the model's text makes no sense: check its form only"
    )
    made.add_argument("--only", action="append", default=[], help="a case by name, repeatable")
    return made
