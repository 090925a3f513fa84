"""`python -m dsinfer_jax.server`: serve a model or the mock, or check a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace

    from starlette.applications import Starlette

FRAMEWORK = ("starlette", "uvicorn", "anyio")


def main(arguments: list[str]) -> int:
    """Serve until a signal comes, or check. The exit code is 2 for what cannot be done."""
    if arguments[:1] == ["conform"]:
        from dsinfer_jax.server.conform.command import conform

        return conform(arguments[1:])
    try:
        return serve(arguments)
    except KeyboardInterrupt:  # while a model was loaded
        return 130
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in FRAMEWORK:
            raise
        print(
            f"error: {package} is missing; install it with the extra: "
            "pip install 'dsinfer-jax[server]'",
            file=sys.stderr,
        )
        return 2


def serve(arguments: list[str]) -> int:
    """Serve until a signal comes."""
    from dsinfer_jax.server.logs import log_to_stderr
    from dsinfer_jax.server.options import parse
    from dsinfer_jax.server.process import bound_socket, make_server

    parsed = parse(arguments)
    log_to_stderr()
    try:
        listener = bound_socket(parsed.host, parsed.port)  # before a model is loaded for nothing
        app = make_app(parsed)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    make_server(app, parsed.host, parsed.port).run(sockets=[listener])
    return 0


def make_app(parsed: Namespace) -> Starlette:
    """The application that the arguments ask for, ready to answer. Raises ValueError, OSError."""
    from dsinfer_jax.server.options import engine_settings, mock_options, server_settings

    settings = server_settings(parsed)
    if parsed.mock:
        from dsinfer_jax.server.mock import create_mock_app

        return create_mock_app(mock_options(parsed), settings)

    from dsinfer_jax.server.engine_app import create_engine_app, load_engine
    from dsinfer_jax.server.logs import log

    def say(line: str) -> None:
        log("starting", what=line)

    llm, tokenizer = load_engine(engine_settings(parsed), say)
    return create_engine_app(llm, tokenizer, settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
