"""Compare the product's prefill and decode with a folder of independently computed tensors.

    python tools/check_golden.py FOLDER

FOLDER has the layout of a golden set: `ckpt/`, `ops.safetensors`, `f32/`, `f32_variant/`, `rt/`;
parts that are absent are skipped and named. Prints one line per group and `N passed, N failed`;
exit code 1 on a failure.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from golden.draft import check_draft
from golden.layers import check_layers
from golden.operations import check_operations
from golden.reading import prompts, read
from golden.report import Report
from golden.runner import Runner
from golden.sequences import check_greedy, check_sequences, check_truncation

from dsinfer_jax.checkpoint.load import load_pretrained
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.numerics import EXACT, UNFUSED
from dsinfer_jax.model.params import Params

CONTINUED_TOKENS = 64  # room for continuations beyond the longest prompt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="golden folder")
    parser.add_argument(
        "--only",
        choices=("ops", "f32", "f32_variant", "rt"),
        action="append",
        help="check these parts only (repeatable)",
    )
    arguments = parser.parse_args()
    parts = arguments.only or ["ops", "f32", "f32_variant", "rt"]
    folder: Path = arguments.folder
    config, params = load_pretrained(folder / "ckpt")
    report = Report()
    for part in parts:
        if not (folder / part).exists() and not (folder / f"{part}.safetensors").exists():
            print(f"absent: {part}")
            continue
        check_part(part, folder, config, params, report)
    return 0 if report.print(sys.stdout) else 1


def check_part(
    part: str, folder: Path, config: ModelConfig, params: Params, report: Report
) -> None:
    if part == "ops":
        tokenizer = folder / "ckpt" / "tokenizer.json"
        check_operations(read(folder / "ops.safetensors"), config, tokenizer, report)
        return
    overrides = folder / part / "config_overrides.json"
    if overrides.exists():
        config = config.with_overrides(**json.loads(overrides.read_text())["text_config"])
    longest = max(len(golden["ids"]) for _, golden in prompts(folder / part)) + CONTINUED_TOKENS
    if part == "rt":
        runner = Runner(config, params, UNFUSED, longest)
        check_layers(folder / part, runner, part, report)
        check_draft(folder / part, runner, part, report)
        return
    runner = Runner(config, params, EXACT, longest)
    check_sequences(folder / part, runner, part, report)
    check_greedy(folder / part, runner, part, report)
    check_truncation(folder / part, runner, part, report)
    check_draft(folder / part, runner, part, report)


if __name__ == "__main__":
    sys.exit(main())
