"""`python -m dsinfer_jax.server`: serve the mock, or check a server."""

import sys

FRAMEWORK = ("starlette", "uvicorn", "anyio")


def main(arguments: list[str]) -> int:
    """Serve until a signal comes, or check. The exit code is 2 for what cannot be done."""
    if arguments[:1] == ["conform"]:
        from dsinfer_jax.server.conform.command import conform

        return conform(arguments[1:])
    try:
        return serve(arguments)
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
    """Serve the mock until a signal comes."""
    from dsinfer_jax.server.logs import log_to_stderr
    from dsinfer_jax.server.mock import create_mock_app
    from dsinfer_jax.server.options import mock_options, parse, server_settings
    from dsinfer_jax.server.process import make_server

    parsed = parse(arguments)
    try:
        app = create_mock_app(mock_options(parsed), server_settings(parsed))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    log_to_stderr()
    make_server(app, parsed.host, parsed.port).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
