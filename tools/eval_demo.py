"""How good the demo model is: the project's gauge of quality.

    python tools/eval_demo.py                                  # the embedded model
    python tools/eval_demo.py --model runs/demo/model --items 100 --json card.json
    python tools/eval_demo.py --only "runtime;exact" --tasks "lookup_far;arithmetic"

Exact match of greedy answers by task on the held-out split (right, well formed), for each way of
running the model; the perplexity of what assistants say for each numerics policy; and how evenly
the experts are used. `--plot FILE.svg` draws it.
"""

import argparse
import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from demo_training import evaluate, report
from demo_training.evaluate import TASK_NAMES

from dsinfer_jax.engine.llm import load_model
from dsinfer_jax.model.numerics import POLICIES

KEEP = (64, 128, 256)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--items", type=int, default=50, help="of each task; default: 50")
    parser.add_argument("--tasks", default=";".join(TASK_NAMES), help="names; default: all")
    parser.add_argument("--only", help="variants by name, separated by ';'; default: all")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--plot", type=Path, help="draw the table into this file")
    options = parser.parse_args()
    config, params, codec = load_model(options.model)
    tasks = options.tasks.split(";")
    chosen = evaluate.variants(KEEP)
    if options.only:
        chosen = [variant for variant in chosen if variant.name in options.only.split(";")]

    table: dict[str, dict[str, dict[str, int]]] = {}
    for variant in chosen:
        began = time.perf_counter()
        some = evaluate.wanted_tasks(variant, tasks)
        tallies = evaluate.evaluate(config, params, codec, variant, some, options.items)
        table[variant.name] = {task: asdict(tally) for task, tally in tallies.items()}
        print(report.table_line(variant.name, tallies), end=" ")
        print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    policies = [name for name in POLICIES if name in table]
    rows = {name: evaluate.read_rows(config, params, name) for name in policies}
    for name, found in rows.items():
        print(f"perplexity, {name}: {found.perplexity:.4f}")
    command = shlex.join(["python", "tools/eval_demo.py", *sys.argv[1:]])
    content: dict[str, Any] = {"command": command, "items": options.items, "table": table}
    if rows:
        content["perplexity"] = {name: found.perplexity for name, found in rows.items()}
        shares = evaluate.expert_shares(next(iter(rows.values())).expert_counts)
        content["expert_shares"] = shares.round(3).tolist()
        print(f"least used expert: {shares.min():.2f} x its share, most used {shares.max():.2f} x")
    if options.json:
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot:
        report.plot_table(table, options.plot)


if __name__ == "__main__":
    main()
