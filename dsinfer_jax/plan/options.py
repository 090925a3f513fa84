"""The options of the planner's command line."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dsinfer_jax.config import ModelConfig, v41_flash
from dsinfer_jax.mesh.expert_balance import DECODE, PREFILL
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.plan.chips import CHIPS, Chip
from dsinfer_jax.plan.collectives import FORMS
from dsinfer_jax.plan.load import Wishes

_DESCRIPTION = """\
Plan a deployment: what lies where, what crosses links, how long a step takes at least.

Needs no weights and no devices. Prefill and decode are planned as two pools of devices, each with a
layout of its own; by default those that the published engine was measured with, with 8 devices for
prefill so that the n-gram tables fit.
"""

_EXAMPLES = """\
examples:
  python -m dsinfer_jax.plan
  python -m dsinfer_jax.plan --chip v5p --dp 128 --requests 16384 --context 32768
  python -m dsinfer_jax.plan --chip b200 --prefill-dp 1 --prefill-ep 8 --prefill-cp 8 --json
  python -m dsinfer_jax.plan --context 8192 --picture layout.svg

exit code: 0 if both phases fit; 1 if one does not; 2 for a layout that is impossible.
"""


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        model: name for the report; `config` is its configuration.
        layouts: one for each phase.
        as_json: print JSON instead of tables.
        picture: where to draw the layouts (.svg), or None.
    """

    model: str
    config: ModelConfig
    chip: Chip
    layouts: dict[str, MeshLayout]
    wishes: Wishes
    as_json: bool
    picture: Path | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence instead of the usage."""
        print(f"plan: {message}; -h shows all options", file=sys.stderr)
        sys.exit(2)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m dsinfer_jax.plan", description=_DESCRIPTION, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    what = parser.add_argument_group("what")
    what.add_argument(
        "--model", default="published", metavar="FOLDER",
        help="folder with a config.json; default: the published sizes of DeepSeek-V4.1-Flash",
    )  # fmt: skip
    what.add_argument("--chip", choices=CHIPS, default="h200")
    what.add_argument("--context", type=int, default=65536, help="tokens of a request")
    what.add_argument(
        "--requests", type=int, help="requests that decode at once; default: 64 for each dp rank"
    )
    what.add_argument(
        "--prefill-rows", type=int, default=8192, help="prompt tokens of a rank's prefill step"
    )
    what.add_argument("--drafts", type=int, default=3, help="drafted tokens per step; 0: none")
    what.add_argument(
        "--keep-tokens", type=int, default=140,
        help="prompt tokens that the consumer half computes; 0: all",
    )  # fmt: skip
    where = parser.add_argument_group("where")
    where.add_argument("--dp", type=int, default=64, help="decode: ranks with own requests")
    where.add_argument("--ep", type=int, help="decode: devices of an expert group; default: dp")
    where.add_argument("--cp", type=int, default=1, help="decode: must be 1")
    where.add_argument("--prefill-dp", type=int, default=8)
    where.add_argument("--prefill-ep", type=int, help="default: prefill-dp times prefill-cp")
    where.add_argument("--prefill-cp", type=int, default=1, help="devices that share a prompt")
    where.add_argument(
        "--redundant", type=int, default=DECODE.redundant_per_rank,
        help="copies of experts on each device in decode",
    )  # fmt: skip
    where.add_argument(
        "--prefill-redundant", type=int, default=PREFILL.redundant_per_rank,
        help="the same in prefill",
    )  # fmt: skip
    where.add_argument("--exchange", choices=FORMS, default="ragged", help="form of exchanges")
    where.add_argument(
        "--memory-share", type=float, default=0.9, help="part of the memory that may be used"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true")
    output.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the layouts")
    return parser


def parse(arguments: Sequence[str]) -> Request:
    """Read the command line.

    Raises:
        LayoutError, ConfigError: a layout or a configuration is impossible.
    """
    given = build_parser().parse_args(arguments)
    published = given.model == "published"
    config = v41_flash() if published else ModelConfig.from_pretrained(given.model)
    for name in ("context", "prefill_rows"):
        if getattr(given, name) < 1:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is {getattr(given, name)}; it must be 1 or more")
    if not 0 < given.memory_share <= 1:
        raise ValueError(f"--memory-share is {given.memory_share}; it must be above 0, at most 1")
    prefill_ep = given.prefill_ep or given.prefill_dp * given.prefill_cp
    layouts = {
        "prefill": MeshLayout.of(given.prefill_dp, prefill_ep, given.prefill_cp),
        "decode": MeshLayout.of(given.dp, given.ep or given.dp * given.cp, given.cp),
    }
    wishes = Wishes(
        context=given.context,
        requests=64 * given.dp if given.requests is None else given.requests,
        prefill_rows=given.prefill_rows,
        drafts=given.drafts,
        keep=given.keep_tokens,
        redundant={"prefill": given.prefill_redundant, "decode": given.redundant},
        exchange=given.exchange,
        memory_share=given.memory_share,
    )
    name = "DeepSeek-V4.1-Flash (published sizes)" if published else given.model
    chip = CHIPS[given.chip]
    return Request(name, config, chip, layouts, wishes, given.json, given.picture)
