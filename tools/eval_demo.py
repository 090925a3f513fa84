"""How good the demo model is: the project's gauge of quality.

    python tools/eval_demo.py                                  # the embedded model
    python tools/eval_demo.py --model runs/demo/model --items 100 --json card.json
    python tools/eval_demo.py --only runtime --tasks lookup_far,arithmetic

Exact match of greedy answers by task on the held-out split (right, well formed, right where the
wording is new too), for each way of running the model, and the perplexity of what assistants say
for each numerics policy. `--plot FILE.svg` draws it.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from demo_training import evaluate, report
from demo_training.tasks import TASKS

from dsinfer_jax.engine.llm import load_model
from dsinfer_jax.model.numerics import POLICIES

KEEP = (64, 128, 256)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--items", type=int, default=50, help="of each task; default: 50")
    parser.add_argument("--tasks", default=",".join(TASKS), help="names; default: all")
    parser.add_argument("--only", help="variants by name, separated by commas; default: all")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--plot", type=Path, help="draw the table into this file")
    options = parser.parse_args()
    config, params, _ = load_model(options.model)
    tasks = options.tasks.split(",")
    chosen = evaluate.variants(KEEP)
    if options.only:
        chosen = [variant for variant in chosen if variant.name in options.only.split(",")]

    table: dict[str, dict[str, dict[str, int]]] = {}
    for variant in chosen:
        tallies = evaluate.evaluate(config, params, variant, tasks, options.items)
        table[variant.name] = {task: asdict(tally) for task, tally in tallies.items()}
        print(report.table_line(variant.name, tallies), flush=True)
    wanted = [name for name in POLICIES if name in table or not options.only]
    found = {name: evaluate.perplexity(config, params, name) for name in wanted}
    for name, value in found.items():
        print(f"perplexity, {name}: {value:.4f}")
    if options.json:
        content = {"items": options.items, "table": table, "perplexity": found}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot:
        report.plot_table(table, options.plot)


if __name__ == "__main__":
    main()
