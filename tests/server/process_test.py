"""The server as a process: its command line, what it imports, its log, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from events import ends_well, errors_of, read_events
from live import PATHS, until
from server_process import COMMAND, process

HEAVY = ("jax", "jaxlib", "numpy", "ml_dtypes", "flax", "orbax", "safetensors")


def test_the_mock_imports_neither_jax_nor_numpy() -> None:
    program = (
        "import sys, asyncio, json\n"
        "from dsinfer_jax.server.mock import create_mock_app\n"
        "import dsinfer_jax.server.__main__, dsinfer_jax.server.conform.command\n"
        "from starlette.testclient import TestClient\n"
        "client = TestClient(create_mock_app())\n"
        "body = {'model': 'DeepSeek-V4.1-Flash', 'messages': [{'role': 'user', 'content': 'a'}]}\n"
        "assert client.post('/v1/chat/completions', json=body).status_code == 200\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_log_has_one_line_a_request_and_no_text_of_it() -> None:
    with process("--answer", "geheim-answer") as server:
        assert server.ask("chat", "geheim-prompt")[0] == 200
        assert server.ask("messages", "geheim-prompt", stream=True)[0] == 200
        assert server.end() in (0, -signal.SIGTERM)
        lines = [line for line in server.lines if line["message"] == "request"]
        assert "geheim" not in json.dumps(server.lines)
    assert [line["dialect"] for line in lines] == ["chat", "messages"]
    assert lines[1]["outcome"] == "ok"
    assert lines[1]["stream"] is True
    assert lines[1]["output_tokens"] > 0
    assert lines[1]["finish_reasons"] == ["stop"]
    assert lines[1]["first_output_seconds"] <= lines[1]["seconds"]


def test_prompts_are_logged_where_asked_for() -> None:
    with process("--log-prompts") as server:
        server.ask("chat", "geheim-prompt")
        server.end()
        assert any("geheim-prompt" in line.get("prompt", "") for line in server.lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--slots", "7"), "--slots is '7'; it must be 8 or more"),
        (("--model", "/nope"), "/nope"),
        (("--fault", "stall"), "only the mock has --fault"),
        (("--context-limit", "99"), "--max-model-len"),
        (("--mock", "--drafter", "lookup"), "--mock has no engine; leave out --drafter"),
        (("--mock", "--port", "99999"), "99999 is no port"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1, port 8000"),
        (("--mock", "--fault", "nope"), "The fault is 'nope'"),
        (("--mock", "--script", "/nope"), "No such file"),
        (("--mock", "--max-choices", "300"), "max_choices is 300"),
        (("--mock", "--tokens-per-chunk", "0"), "tokens_per_chunk is 0"),
        (("--mock", "--answer", "a", "--script", "b"), "cannot be combined"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: tuple[str, ...], message: str) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr


def test_keys_from_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann secret-1\n\nbob secret-2\n")
    with process("--api-keys-file", str(keys)) as server:
        assert server.ask("chat")[0] == 401


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("clients", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_sigterm_under_load_ends_every_request_with_a_result_or_an_error(
    clients: int, patient: bool
) -> None:
    """Patient: the drain is long enough for all. Otherwise: for none."""
    drain = "60" if patient else "0.5"
    with process("--delay", "0.1", "--drain-timeout", drain) as server:
        # 12 pieces or so: 1.2 seconds an answer; without patience 60 and more
        text = "Hello." if patient else "Hello. " * 400
        results: list[tuple[str, bool, int, bytes]] = []

        def client(number: int) -> None:
            dialect, stream = list(PATHS)[number % 3], number % 2 == 0
            results.append((dialect, stream, *server.ask(dialect, text, stream)))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        until(lambda: server.arrived() >= clients, seconds=60)
        began = time.monotonic()
        code = server.end()
        for thread in threads:
            thread.join(60)
        assert time.monotonic() - began < (60 if patient else 15)
        assert code in (0, -signal.SIGTERM)
    assert len(results) == clients
    for dialect, stream, status, body in results:
        if patient:
            assert status == 200
            if stream:
                assert ends_well(dialect, read_events(body))
        elif stream:
            events = read_events(body)
            assert errors_of(dialect, events) == [
                "The server is shutting down; try again at another one."
            ]
        else:
            assert status == 503
            assert "shutting down" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("command", [("--mock",), ("conform", "ftp://a")])
def test_without_the_framework_only_the_server_is_missing(command: tuple[str, ...]) -> None:
    program = (
        "import runpy, sys\n"
        "sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        f"sys.argv = ['server', *{command!r}]\n"
        "runpy.run_module('dsinfer_jax.server', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    wanted = "pip install 'dsinfer-jax[server]'" if command == ("--mock",) else "http://"
    assert wanted in done.stderr
