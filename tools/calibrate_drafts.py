"""Fit the temperatures of draft confidences to what a running engine accepts (speculative.md 10).

    python tools/calibrate_drafts.py                                  # the embedded model
    python tools/calibrate_drafts.py --model FOLDER --prompts prompts.jsonl --json calibration.json

Prompts are held-out items of the demo model's tasks, or lines of a file, each a JSON list of token
ids. Prints the error of the survival rates by place before and after, and the option to start an
engine with. Answers are greedy: what is sampled is accepted
otherwise, which a head that does not know the temperature cannot see.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from demo_training import data
from demo_training.evaluate import items
from draft_blocks import record_blocks

from dsinfer_jax.engine.calibration import fit_temperatures, logits_of
from dsinfer_jax.engine.llm import LLM, load_model

TASKS = (
    "small_talk", "arithmetic", "copying", "lookup", "dates", "units", "tool_calls",
    "json_answers", "mixed",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--prompts", type=Path, help="JSON lines of token ids")
    parser.add_argument("--items", type=int, default=20, help="of each task, without --prompts")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the calibration to this file")
    options = parser.parse_args()
    if options.prompts:
        prompts = [json.loads(line) for line in options.prompts.read_text().splitlines()]
    else:
        renderer = data.renderer()
        prompts = [renderer.prompt(item) for task in TASKS for item in items(task, options.items)]
    llm = LLM(*load_model(options.model), drafter="dspark", max_model_len=3072)
    blocks = list(record_blocks(llm, prompts, options.max_tokens))
    confidences = np.concatenate([one.confidences for one in blocks])
    accepted = np.concatenate([one.accepted for one in blocks])
    found = fit_temperatures(logits_of(confidences), accepted)
    print(f"{found.blocks} blocks of {len(prompts)} answers")
    print("place  temperature  error before  after")
    for place, (temperature, before, after) in enumerate(
        zip(found.temperatures, found.before, found.after), start=1
    ):
        print(f"{place:5}  {temperature:11.3f}  {before:12.3f}  {after:5.3f}")
    values = ",".join(f"{temperature:g}" for temperature in found.temperatures)
    print(f"--confidence-temperatures {values}")
    if options.json:
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
