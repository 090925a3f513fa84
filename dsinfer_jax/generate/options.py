"""The options of the command line, read into one job. Imports nothing heavy."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from dsinfer_jax.engine.request import SamplingParams
from dsinfer_jax.generate.chat_start import ChatStart, read_chat_start
from dsinfer_jax.generate.process_options import add_process_options, read_process_options
from dsinfer_jax.generate.prompts import PromptItem, read_prompts
from dsinfer_jax.mesh.hosts import HostOptions
from dsinfer_jax.settings import SETTINGS, add_settings, read_settings

DEFAULT_PROMPT = "Once upon a time"
_MAX_TOKENS, _CHAT_MAX_TOKENS = 64, 1024
_NOT_OF_A_CHAT = (
    "prompt", "prompt_ids", "prompts", "ignore_eos", "json", "stats", "coordinator", "distributed",
)  # fmt: skip

_DESCRIPTION = """\
Generate text with a DeepSeek-V4.1 model.

Without arguments: continue a default prompt with the embedded demo model. Text goes to stdout as it
comes; everything else goes to stderr.
"""

_EXAMPLES = """\
examples:
  python -m dsinfer_jax.generate
  python -m dsinfer_jax.generate --prompt "The sea" --temperature 0.8 --top-p 0.95 --seed 7
  python -m dsinfer_jax.generate --model ~/DeepSeek-V4.1-Flash --chat request.json --max-tokens 512
  python -m dsinfer_jax.generate --interactive --tools tools.json --temperature 0.6
  python -m dsinfer_jax.generate --prompts many.jsonl --json > results.jsonl
  python -m dsinfer_jax.generate --prompt-ids 0,57,400 --prompt-ids 0,12 --ignore-eos --stats
  python -m dsinfer_jax.generate --coordinator node0:1234 --num-processes 2 --process-id 0 --dp 16

files:
  --prompts FILE.jsonl  one JSON value a line: a string, or an object with "prompt" or
                        "prompt_token_ids"; the object may also have max_tokens, temperature,
                        top_p, top_k, seed, ignore_eos, logprobs, which win over the options
  --chat FILE.json      a Chat Completions request, or just its list of messages; its temperature,
                        top_p, max_tokens and seed win over the options, and its response_format
                        and tools are enforced; with --interactive a list of messages
  --tools FILE.json     tools as Chat Completions declares them, or an object with "tools" and
                        "results": a list of objects with the name of a tool, its result, and
                        perhaps the arguments for which it is; other results are asked for

exit code: 0; 1 if a request failed (the others are answered); 2 for bad input; 3 if another process
of the run is lost or differs.
"""


@dataclass(frozen=True)
class Job:
    """What the command line asks for.

    Attributes:
        settings: values of `settings.SETTINGS` by name.
        prompts: what to continue, in order.
        as_json, stats: form of the output.
        started: `time.perf_counter()` when the command line was read.
        chat: what a chat in the terminal begins with; None: prompts are continued.
        hosts: how this process finds the others of the run; None: there are none.
    """

    settings: dict[str, Any]
    prompts: list[PromptItem]
    as_json: bool
    stats: bool
    started: float
    chat: ChatStart | None = None
    hosts: HostOptions | None = None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence instead of the usage."""
        print(f"generate: {message}; -h shows all options", file=sys.stderr)
        sys.exit(2)


def build_parser() -> argparse.ArgumentParser:
    """The parser; values of settings stay text, `settings.read_settings` checks them."""
    parser = _Parser(
        prog="python -m dsinfer_jax.generate",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    prompts = parser.add_argument_group("what to continue (all of them, in this order)")
    prompts.add_argument(
        "--prompt", metavar="TEXT", action="append", default=[],
        help="plain text, which gets a BOS in front; may be given several times",
    )  # fmt: skip
    prompts.add_argument(
        "--prompt-ids", metavar="IDS", action="append", default=[],
        help="token ids such as 0,57,400, taken as they are; may be given several times",
    )  # fmt: skip
    prompts.add_argument("--prompts", metavar="FILE.jsonl", help="many prompts; see below")
    prompts.add_argument("--chat", metavar="FILE.json", help="a chat request; see below")

    chat = parser.add_argument_group("chat in the terminal (instead of prompts)")
    chat.add_argument(
        "--interactive", action="store_true",
        help="ask for messages and answer them; /help lists the commands",
    )  # fmt: skip
    chat.add_argument("--system", metavar="TEXT", help="what the model is told first")
    chat.add_argument("--tools", metavar="FILE.json", help="what it may call; see below")

    sampling = parser.add_argument_group("how to choose tokens")
    sampling.add_argument(
        "--max-tokens", metavar="N", type=int,
        help=f"default: {_MAX_TOKENS}, in a chat {_CHAT_MAX_TOKENS} for each answer",
    )  # fmt: skip
    sampling.add_argument(
        "--temperature", metavar="T", type=float, default=0.0,
        help="0 takes the most likely token; default: 0, so that a run can be repeated",
    )  # fmt: skip
    sampling.add_argument(
        "--top-p", metavar="P", type=float, default=1.0,
        help="keep the most likely tokens up to this mass; default: 1, all",
    )  # fmt: skip
    sampling.add_argument(
        "--top-k", metavar="K", type=int, default=-1,
        help="keep so many of the most likely tokens; default: -1, all",
    )  # fmt: skip
    sampling.add_argument(
        "--seed", metavar="N", type=int, help="makes draws repeatable; default: a fresh one each"
    )
    sampling.add_argument(
        "--ignore-eos", action="store_true", help="go on after the end-of-sequence token"
    )

    add_settings(parser.add_argument_group("model and engine"))

    add_process_options(parser)

    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true",
        help="one JSON object a line for each answer: index, answer, prompt_token_ids, token_ids, "
        "text, finish_reason, logprobs, error, cached_tokens, why_miss",
    )  # fmt: skip
    output.add_argument(
        "--stats", action="store_true",
        help="on stderr: what the engine does, as a live table on a terminal with rich installed, "
        "else as a line now and then; at the end rates, compile seconds and memory",
    )  # fmt: skip
    return parser


def parse(arguments: Sequence[str]) -> Job:
    """Read and check everything that can be checked without a model.

    Raises:
        ValueError: a value or a file that cannot be used, in one sentence. Options that argparse
            refuses end the process with code 2.
    """
    started = time.perf_counter()
    options = build_parser().parse_args(arguments)
    _check_together(options)
    settings = read_settings({setting.name: getattr(options, setting.name) for setting in SETTINGS})
    params = SamplingParams(
        max_tokens=_max_tokens(options),
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        seed=options.seed,
        ignore_eos=options.ignore_eos,
    )
    hosts = read_process_options(options)
    if options.interactive:
        start = read_chat_start(options.system, options.tools, options.chat, params)
        return Job(settings, [], False, False, started, start)
    prompts = read_prompts(
        options.prompt, options.prompt_ids, options.prompts, options.chat, params
    )
    if not prompts and options.prompts is None:
        prompts = [PromptItem(DEFAULT_PROMPT, params)]
    return Job(settings, prompts, options.json, options.stats, started, hosts=hosts)


def _check_together(options: argparse.Namespace) -> None:
    """Refuse options that would mean nothing beside the others."""
    if options.interactive:
        for name in _NOT_OF_A_CHAT:
            if getattr(options, name):
                option = name.replace("_", "-")
                raise ValueError(f"--{option} does not go with --interactive; leave one out")
    for name in ("system", "tools"):
        if getattr(options, name) is not None and not options.interactive:
            raise ValueError(f"--{name} is for a chat in the terminal; add --interactive")


def _max_tokens(options: argparse.Namespace) -> int:
    if options.max_tokens is not None:
        return int(options.max_tokens)
    return _CHAT_MAX_TOKENS if options.interactive else _MAX_TOKENS
