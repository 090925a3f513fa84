"""`python -m dsinfer_jax.checkpoint`: the command line that writes native checkpoints."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dsinfer_jax.checkpoint.load import load_pretrained
from dsinfer_jax.checkpoint.manifest import LEAF_FILES, ORBAX
from dsinfer_jax.checkpoint.native import write_native
from dsinfer_jax.checkpoint.orbax_tree import save_orbax

_DESCRIPTION = """\
Write a checkpoint in the Hugging Face layout as a native one, for --native-checkpoint.

A native checkpoint depends on no mesh: experts by number, each once, and no padding. It names the
files that it was made of, and is refused when they have changed.
"""

_EXAMPLES = """\
examples:
  python -m dsinfer_jax.checkpoint ~/DeepSeek-V4.1-Flash ~/v41-native
  python -m dsinfer_jax.checkpoint ~/DeepSeek-V4.1-Flash ~/v41-orbax --form orbax

exit code: 0; 2 for a checkpoint that cannot be used, or a folder that cannot be written.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence instead of the usage."""
        print(f"checkpoint: {message}; -h shows all options", file=sys.stderr)
        sys.exit(2)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m dsinfer_jax.checkpoint", description=_DESCRIPTION, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("source", type=Path, metavar="CHECKPOINT")
    parser.add_argument("native", type=Path, metavar="FOLDER", help="does not exist yet")
    parser.add_argument(
        "--form", choices=(LEAF_FILES, ORBAX), default=LEAF_FILES,
        help="leaf-files: what loads fastest; needs memory for a part of a leaf. orbax: for tools "
        f"that read Orbax; needs memory for all weights. default: {LEAF_FILES}",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = build_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        if given.form == LEAF_FILES:
            write_native(given.native, given.source)
        else:
            config, params = load_pretrained(given.source)
            save_orbax(given.native, params, config, source=given.source)
    except ValueError as error:  # ConfigError, CheckpointError
        print(f"checkpoint: {error}", file=sys.stderr)
        return 2
    return 0
