"""The conformance kit: passes on a good server, and finds every fault that a client can see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from live import PATHS, Live

from dsinfer_jax.server.conform.cases import CASES
from dsinfer_jax.server.conform.client import Event, Target, Violation
from dsinfer_jax.server.conform.command import Finding, conform, run_cases
from dsinfer_jax.server.conform.outcome import Expectation, check_outcome
from dsinfer_jax.server.conform.speakers import SPEAKERS, Question, Speaker
from dsinfer_jax.server.mock.faults import FAULTS

MODEL = "DeepSeek-V4.1-Flash"
DIALECTS = {speaker.name for speaker in SPEAKERS}

# fault -> case that meets it, how, and in which dialects
FOUND = {
    "half-character": ("plain", "replacement character", DIALECTS),
    "missing-think-end": ("thinking", "thinking ended without an answer", DIALECTS),
    "truncated-tools": ("tools", "no JSON object", DIALECTS),
    "stall": ("streamed", "no end came within", DIALECTS),
    "early-end": ("streamed", "ended with an error", DIALECTS),
    "empty": ("streamed", "refused with 502", DIALECTS),
    "error": ("streamed", "ended with an error", DIALECTS),
    "lost-cache": ("cache", "nothing of it was cached", DIALECTS),
    "status-429": ("streamed", "refused with 429", DIALECTS),
    "status-503": ("plain", "refused with 503", DIALECTS),
    "wire-half-character": ("not_thinking", "not UTF-8", DIALECTS),
    "wire-early-end": ("streamed", "the last event is", DIALECTS),
    "wire-duplicate-finish": ("streamed", "", DIALECTS),
}
# the server keeps this one from its clients: everything passes
KEPT = {"duplicate-finish"}


def findings(mock: Live, fault: str | None, only: tuple[str, ...] = ()) -> list[Finding]:
    headers = {} if fault is None else {"x-dsinfer-fault": fault}
    target = Target(mock.url, headers, 1.0 if fault == "stall" else 20.0)
    found: list[Finding] = []
    run_cases(target, MODEL, found.append, only)
    return found


def test_every_fault_is_tried() -> None:
    assert set(FOUND) | KEPT == set(FAULTS)


def test_the_mock_keeps_every_law(mock: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert conform([mock.url]) == 0
    printed = capsys.readouterr().out
    assert " 0 failed" in printed
    ran = {line.split()[2] for line in printed.splitlines() if line.startswith("ok ")}
    assert ran >= {case.__name__ for case in CASES}


@pytest.mark.parametrize("fault", sorted(KEPT))
def test_faults_that_the_server_keeps_from_its_clients(mock: Live, fault: str) -> None:
    assert [str(found) for found in findings(mock, fault) if found.result == "FAIL"] == []


@pytest.mark.parametrize("fault", sorted(FOUND))
def test_a_fault_is_found(mock: Live, fault: str) -> None:
    case, reason, dialects = FOUND[fault]
    failed = [found for found in findings(mock, fault, (case,)) if found.result == "FAIL"]
    assert {found.dialect for found in failed} >= dialects
    assert all(reason in found.reason for found in failed if found.dialect in dialects)


def test_a_model_that_writes_noise_is_judged_by_its_form(mock: Live) -> None:
    for fault, code, *only in (
        ("half-character", 0, "--only", "streamed"),
        ("half-character", 1, "--only", "structured"),  # what a grammar enforces has its form
        ("missing-think-end", 0),
        ("early-end", 1),
    ):
        options = ["--header", f"x-dsinfer-fault:{fault}", "--max-tokens", "64", *only]
        assert conform([mock.url, "--noise", *options]) == code


def test_a_report_says_what_failed(mock: Live, capsys: pytest.CaptureFixture[str]) -> None:
    code = conform([mock.url, "--header", "x-dsinfer-fault:error", "--only", "plain"])
    assert code == 1
    assert "FAIL chat plain" in capsys.readouterr().out
    assert conform(["http://127.0.0.1:9"]) == 2
    assert conform(["ftp://a"]) == 2


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.name)
def test_no_event_can_be_lost_or_doubled_unseen(mock: Live, speaker: Speaker) -> None:
    """Of a stream with reasoning, two calls' worth of markup, and an end."""
    target = Target(mock.url, {}, 20.0)
    question = Question("get_weather", tool=True, thinking=True, stream=True)
    body = speaker.write(replace(question, limit=1_000), MODEL)
    events = target.ask("POST", speaker.path, body).events
    speaker.read_stream(events)

    def is_broken(changed: list[Event]) -> bool:
        try:
            check_outcome(speaker.read_stream(changed), Expectation())
        except (Violation, KeyError, IndexError):
            return True
        return False

    def harmless(event: Event) -> bool:
        """Text that nothing else repeats, or no content at all."""
        if event.name is None:  # a delta of chat
            data: Any = None if event.data == "[DONE]" else event.json()
            return data is not None and data["choices"][0]["finish_reason"] is None
        return event.name == "ping" or "delta" in event.name

    for place, event in enumerate(events):
        lost = events[:place] + events[place + 1 :]
        doubled = [*events[: place + 1], *events[place:]]
        if speaker.name == "responses" or not harmless(event):
            assert is_broken(lost), f"{event} can be lost"
            assert is_broken(doubled), f"{event} can come twice"
    assert is_broken(events[:-1])
    assert is_broken([])


def test_all_dialects_are_served() -> None:
    assert set(PATHS) == DIALECTS
