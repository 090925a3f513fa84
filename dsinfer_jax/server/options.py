"""The command line of the server: arguments to settings, to an engine and to a mock.

python -m dsinfer_jax.server --model demo --port 8000
python -m dsinfer_jax.server --mock
python -m dsinfer_jax.server conform http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dsinfer_jax.recipe import ModelVersion
from dsinfer_jax.server.errors import RequestError
from dsinfer_jax.server.mock import MockOptions
from dsinfer_jax.server.mock.faults import FAULTS, read_fault
from dsinfer_jax.server.mock.script import Script
from dsinfer_jax.server.settings import MODEL, ServerSettings
from dsinfer_jax.settings import SETTINGS, add_settings, read_settings

NUMBERS = {
    "context_limit": "longest prompt plus output in tokens, of the mock",
    "max_choices": "largest n of a chat request",
    "max_running": "requests that generate at the same time; more get 429",
    "max_body": "bytes of the longest request body",
    "max_bodies": "bytes of all request bodies in memory together",
    "body_timeout": "seconds for a body to arrive",
    "request_timeout": "seconds for a whole request",
    "stall_timeout": "seconds without output after which a request fails",
    "write_timeout": "seconds to wait for a client that does not read",
    "ping_interval": "seconds of silence after which a stream gets a ping",
    "drain_timeout": "seconds that running requests may go on after SIGTERM",
    "retry_after": "seconds that a refused client is told to wait",
    "max_stored": "bytes of all Responses kept for previous_response_id; 0: none are",
}
MOCK_NAMES = ("answer", "script", "fault", "delay", "tokens_per_chunk")


def parser() -> argparse.ArgumentParser:
    """The options; help texts are their documentation."""
    types: dict[str, Callable[[str], Any]] = {"int": int, "float": float}
    kinds = {each.name: types.get(str(each.type), str) for each in fields(ServerSettings)}
    made = argparse.ArgumentParser(
        prog="python -m dsinfer_jax.server",
        description="Chat Completions, Responses and Messages over HTTP.",
        epilog="python -m dsinfer_jax.server conform URL checks a server of these dialects.",
        allow_abbrev=False,
    )
    made.add_argument("--host", default="127.0.0.1", help="address to listen on")
    made.add_argument("--port", type=_port, default=8000, help="0: a free one")
    made.add_argument(
        "--model-name", action="append", default=[], help=f"accepted name, repeatable ({MODEL})"
    )
    made.add_argument(
        "--api-keys-file", type=Path, help="lines of OWNER KEY; without it everybody may ask"
    )
    made.add_argument(
        "--cors-origin", action="append", default=[], help="web origin that may ask, repeatable"
    )
    made.add_argument(
        "--no-thinking", action="store_true", help="requests that do not say do not think"
    )
    made.add_argument("--strict-output", action="store_true", help="repair broken markup")
    made.add_argument("--log-prompts", action="store_true", help="write prompts into the log")
    for name, meaning in NUMBERS.items():
        made.add_argument("--" + name.replace("_", "-"), type=kinds[name], help=meaning)
    add_settings(made.add_argument_group("model and engine"))
    _add_mock_options(made)
    return made


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{port} is no port; it must be in 0..65535")
    return port


def _add_mock_options(made: argparse.ArgumentParser) -> None:
    mock = made.add_argument_group("mock", "a server without a model, to test clients against")
    mock.add_argument("--mock", action="store_true", help="answer without a model")
    mock.add_argument("--answer", help="say this; default: what was asked is said again")
    mock.add_argument("--script", type=Path, help="play a file of scripted events")
    mock.add_argument("--fault", help=f"of every answer: {', '.join(FAULTS)}")
    mock.add_argument("--delay", type=float, default=0.0, help="seconds before each piece")
    mock.add_argument("--tokens-per-chunk", type=int, default=4, help="size of a piece")


def server_settings(arguments: argparse.Namespace) -> ServerSettings:
    """The settings that the arguments stand for. Raises ValueError and OSError."""
    given: dict[str, Any] = {
        name: getattr(arguments, name) for name in NUMBERS if getattr(arguments, name) is not None
    }
    names = arguments.model_name or [MODEL]
    if arguments.api_keys_file is not None:
        given["api_keys"] = read_keys(arguments.api_keys_file)
    return ServerSettings(
        models=dict.fromkeys(names, ModelVersion.DeepseekV41Flash),
        cors_origins=tuple(arguments.cors_origin),
        default_thinking=not arguments.no_thinking,
        strict_output=arguments.strict_output,
        log_prompts=arguments.log_prompts,
        **given,
    )


def read_keys(path: Path) -> dict[str, str]:
    """Keys by owner from lines of `OWNER KEY`. ValueError names the line that is not one."""
    keys: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 2 or parts[0] in keys:
            raise ValueError(f"line {number} of {path} must be a new owner and a key")
        keys[parts[0]] = parts[1]
    if not keys:
        raise ValueError(f"{path} holds no keys; write lines of OWNER KEY")
    return keys


def mock_options(arguments: argparse.Namespace) -> MockOptions:
    """How the mock answers. Raises ValueError and OSError."""
    try:
        fault = read_fault(arguments.fault or "")
    except RequestError as error:
        raise ValueError(error.message) from None
    return MockOptions(
        answer=arguments.answer,
        script=None if arguments.script is None else Script.read(arguments.script),
        fault=fault,
        delay=arguments.delay,
        tokens_per_chunk=arguments.tokens_per_chunk,
    )


def engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Values of the engine's settings by name. Raises SettingError, a ValueError."""
    return read_settings({each.name: getattr(arguments, each.name) for each in SETTINGS})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments; exits with a usage message where they make no sense together."""
    made = parser()
    parsed = made.parse_args(arguments)
    if parsed.answer is not None and parsed.script is not None:
        made.error("--answer and --script cannot be combined")
    if parsed.mock:
        given = [each.option for each in SETTINGS if getattr(parsed, each.name) is not None]
        if given:
            made.error(f"--mock has no engine; leave out {', '.join(given)}")
        return parsed
    if parsed.context_limit is not None:
        made.error("--context-limit is of the mock; an engine has --max-model-len")
    of_mock = {name: made.get_default(name) for name in MOCK_NAMES}
    given = [name for name, default in of_mock.items() if getattr(parsed, name) != default]
    if given:
        made.error(f"only the mock has --{given[0].replace('_', '-')}; add --mock")
    return parsed
