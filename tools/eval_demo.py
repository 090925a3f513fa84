"""How good the demo model is: the project's gauge of quality.

    python tools/eval_demo.py                                  # the embedded model
    python tools/eval_demo.py --model runs/demo/model --items 100 --json card.json
    python tools/eval_demo.py --only "runtime;exact" --tasks "lookup_far;arithmetic"

Exact match of greedy answers by task on the held-out split (right, well formed), for each way of
running the model; the perplexity of what assistants say for each numerics policy; and how evenly
the experts are used. A file of `--json` that is there already gets more: variants and tasks that it
has not, and new figures of those it has. `--plot FILE.svg` draws it.
"""

import argparse
import json
import shlex
import sys
import time
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np
from demo_training import evaluate, report
from demo_training.evaluate import TASK_NAMES

from dsinfer_jax.engine.llm import load_model
from dsinfer_jax.model.numerics import POLICIES
from dsinfer_jax.model.params import Params

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

    content = earlier(options.json, weights_digest(params))
    content["commands"].append(shlex.join(["python", "tools/eval_demo.py", *sys.argv[1:]]))
    for variant in chosen:
        began = time.perf_counter()
        some = evaluate.wanted_tasks(variant, tasks)
        found = evaluate.evaluate(config, params, codec, variant, some, options.items)
        tallies = {task: asdict(tally) for task, tally in found.tallies.items()}
        content["table"].setdefault(variant.name, {}).update(tallies)
        print(report.table_line(variant.name, found.tallies), end=" ")
        print(f"({time.perf_counter() - began:.0f} s)", flush=True)
        if found.accepted:
            content["accepted"][variant.name] = found.accepted
            print("accepted by place:", " ".join(f"{share:.3f}" for share in found.accepted))
        if variant.name in POLICIES:
            rows = evaluate.read_rows(config, params, variant.name)
            content["perplexity"][variant.name] = rows.perplexity
            shares = evaluate.expert_shares(rows.expert_counts)
            content["expert_shares"] = shares.round(3).tolist()
            print(f"perplexity: {rows.perplexity:.4f}; least used expert: {shares.min():.2f} x "
                  f"its share, most used {shares.max():.2f} x", flush=True)  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot:
        report.plot_table(content["table"], options.plot)


def earlier(path: Path | None, weights: str) -> dict[str, Any]:
    """What a file has of these weights.

    Raises:
        SystemExit: it is of others.
    """
    empty = {"weights": weights, "commands": [], "table": {}, "accepted": {}, "perplexity": {}}
    if path is None or not path.exists():
        return empty
    content: dict[str, Any] = json.loads(path.read_text())
    if content["weights"] != weights:
        raise SystemExit(f"{path} is about other weights; name another file, or delete it")
    return content


def weights_digest(params: Params) -> str:
    """SHA-256 of all weights."""
    digest = sha256()
    for leaf in jax.tree.leaves(params):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
