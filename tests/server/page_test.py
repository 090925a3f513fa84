"""The status page in a real browser: no errors, and numbers that move."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from browser import Browser, browser, missing
from engine_server import SPEAKER, serving
from live import PATHS, running, until

from dsinfer_jax.server import ServerSettings
from dsinfer_jax.server.conform.speakers import Question
from dsinfer_jax.server.mock import create_mock_app

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"not installed: {', '.join(missing())}; Debian has both as packages"
)

FIGURES = """Object.fromEntries([...document.querySelectorAll('#figures div')].map(
    (one) => [one.querySelector('dt').textContent, one.querySelector('dd').textContent]))"""
PAINTED = """(() => { const c = document.getElementById('steps');
    const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
    return p.some((value, place) => place % 4 === 3 && value > 0) })()"""


def figures(page: Browser) -> dict[str, str]:
    return page.evaluate(FIGURES)


def text_of(page: Browser, id: str) -> str:
    return page.evaluate(f"document.getElementById('{id}').textContent")


@pytest.mark.usefixtures("endless")
def test_the_page_shows_what_a_model_does(noise_llm: Any) -> None:
    with serving(noise_llm) as served, browser() as page, ThreadPoolExecutor(4) as clients:
        page.open(served.live.url + "/")
        until(lambda: "engine" in text_of(page, "state"))
        assert "taking requests" in text_of(page, "state")
        assert text_of(page, "pace") == "no steps yet"
        before = figures(page)
        assert before["Running requests"] == before["Answered"] == "0"
        answers = [
            clients.submit(served.ask, dialect, Question("Go on.", stream=True, limit=300))
            for dialect in SPEAKER
        ]
        until(lambda: figures(page)["Running in the source"] == "3")
        until(lambda: "ms a step" in text_of(page, "pace"))
        for answer in answers:
            answer.result()
        until(lambda: figures(page)["Answered"] == "3")
        after = figures(page)
        assert int(after["Output tokens"]) >= 300
        assert after["Running requests"] == "0"
        assert 0 < float(after["Expert balance"].removesuffix(" %")) <= 100
        assert float(after["Hidden host time"].removesuffix(" %")) > 0
        assert page.evaluate(PAINTED)
        assert page.console() == []


def test_the_page_asks_for_a_key() -> None:
    app = create_mock_app(settings=ServerSettings(api_keys={"ann": "secret-1"}))
    with running(app) as live, browser() as page:
        page.open(live.url + "/")
        until(lambda: text_of(page, "state") == "an API key is needed")
        page.evaluate(
            "(document.querySelector('#key input').value = 'secret-1',"
            " document.querySelector('#key button').click())"
        )
        until(lambda: "mock" in text_of(page, "state"))
        path, make = PATHS["chat"]
        assert live.post(path, make(), x_api_key="secret-1").status == 200
        until(lambda: figures(page)["Answered"] == "1")
        refused = [line for line in page.console() if "401" not in line]
        assert refused == []
