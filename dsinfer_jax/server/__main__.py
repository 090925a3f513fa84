"""`python -m dsinfer_jax.server`: serve the mock, or check a server."""

import sys

from dsinfer_jax.server.logs import log_to_stderr
from dsinfer_jax.server.mock import create_mock_app
from dsinfer_jax.server.options import mock_options, parse, server_settings
from dsinfer_jax.server.process import make_server


def main() -> int:
    """Serve until a signal comes. The exit code is 2 for arguments that cannot be used."""
    if sys.argv[1:2] == ["conform"]:
        from dsinfer_jax.server.conform.command import conform

        return conform(sys.argv[2:])
    arguments = parse()
    try:
        app = create_mock_app(mock_options(arguments), server_settings(arguments))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    log_to_stderr()
    make_server(app, arguments.host, arguments.port).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
