"""Counters of what conversion leaves out."""

from __future__ import annotations

import json
from random import Random

from request_maker import RequestMaker

from dsinfer_jax.recipe import ConversionError, ConversionOptions
from dsinfer_jax.recipe.explain import REQUESTS
from dsinfer_jax.recipe.request_report import RequestReport, convert_with_report

V41 = "DeepSeek-V4.1-Flash"
V4 = "DeepSeek-V4-Pro"


def report_of(dialect: str, **body: object) -> RequestReport:
    _, report = convert_with_report({"model": V41, **body}, dialect=dialect)  # type: ignore[arg-type]
    return report


def test_a_plain_request_has_nothing_to_report() -> None:
    messages = [{"role": "user", "content": "x"}]
    assert report_of("chat", messages=messages, temperature=0.5).to_json() == (
        '{"ignored":{},"dropped":{},"replaced":{}}'
    )


def test_ignored_settings_are_named() -> None:
    messages = [
        {"role": "user", "content": "x", "name": "n", "cache_control": {"type": "ephemeral"}},
        {"role": "user", "content": "y", "name": "m"},
    ]
    report = report_of("chat", messages=messages, max_completion_tokens=5, user="u")
    assert report.ignored == {
        "max_completion_tokens": 1,
        "user": 1,
        "messages[].name": 2,
        "messages[].cache_control": 1,
    }


def test_dropped_items_and_tools() -> None:
    items = [
        {"type": "item_reference", "id": "x"},
        {"type": "reasoning", "content": [], "encrypted_content": "secret"},
        {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
    ]
    tools = [{"type": "web_search"}, {"type": "file_search"}]
    report = report_of("responses", input=items, tools=tools, truncation="auto")
    assert report.dropped == {
        "input[]: item_reference": 1,
        "input[].encrypted_content": 1,
        "tools[]: web_search": 1,
        "tools[]: file_search": 1,
    }
    assert report.replaced == {"input_file": 1}
    assert report.ignored["truncation"] == 1


def test_images_are_replaced_for_v4() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x"}}
    messages = [{"role": "user", "content": [image]}]
    assert report_of("chat", messages=messages).replaced == {}
    assert report_of("chat", model=V4, messages=messages).replaced == {"image_url": 1}


def test_the_billing_line_is_counted() -> None:
    system = [{"type": "text", "text": "x-anthropic-billing-header: a"}]
    report = report_of("messages", system=system, messages=[{"role": "user", "content": "x"}])
    assert report.dropped == {"system[]: billing line": 1}


def test_watching_changes_nothing() -> None:
    compared = 0
    total = RequestReport()
    for seed in range(300):
        maker = RequestMaker(Random(seed))
        dialect = maker.pick(tuple(REQUESTS))
        body = json.dumps(getattr(maker, dialect)())
        try:
            plain = REQUESTS[dialect](body).convert(ConversionOptions())
        except (ConversionError, ValueError):
            continue
        watched, report = convert_with_report(body, dialect=dialect)
        assert repr(watched.conversation.messages) == repr(plain.conversation.messages)
        assert repr(watched.conversation) == repr(plain.conversation)
        total.add(report)
        compared += 1
    assert compared > 50
    assert total.dropped
