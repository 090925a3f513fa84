"""``python -m dsinfer_jax.recipe explain|render|encode request.json``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dsinfer_jax.recipe.conversion_options import ConversionOptions, ModelVersion
from dsinfer_jax.recipe.explain import REQUESTS, explain
from dsinfer_jax.recipe.tokenizer import Tokenizer
from dsinfer_jax.recipe.values import ConversionError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0, or 1 with a sentence on standard error for a bad request."""
    options = _parser().parse_args(arguments)
    body = sys.stdin.buffer.read() if options.request == "-" else Path(options.request).read_bytes()
    tokenizer = None if options.tokenizer is None else Tokenizer.from_file(options.tokenizer)
    if options.command == "encode" and tokenizer is None:
        print("encode needs --tokenizer FILE, a tokenizer.json", file=sys.stderr)
        return 1
    conversion = ConversionOptions()
    for name in options.model_alias:
        conversion = conversion.with_model_alias(name, ModelVersion.DeepseekV41Flash)
    try:
        explanation = explain(
            body, dialect=options.dialect, options=conversion, tokenizer=tokenizer
        )
    except (ValueError, ConversionError, RuntimeError) as error:
        print(f"{options.request}: {error}", file=sys.stderr)
        return 1
    if options.command == "render":
        sys.stdout.write(explanation.prompt)
    elif options.command == "encode":
        print(json.dumps([token.id for token in explanation.tokens or ()]))
    else:
        print(explanation.to_json() if options.json else explanation.to_terminal())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dsinfer_jax.recipe",
        description="Look at the prompt of a request: where it comes from, its text, its ids.",
    )
    parser.add_argument("command", choices=("explain", "render", "encode"))
    parser.add_argument("request", help="a file with the JSON of a request, - for standard input")
    parser.add_argument("--dialect", choices=tuple(REQUESTS), default="chat")
    parser.add_argument("--tokenizer", help="a tokenizer.json; encode needs it")
    parser.add_argument("--json", action="store_true", help="explain as JSON, not in colours")
    parser.add_argument(
        "--model-alias", action="append", default=[], help="one more model name to accept"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
