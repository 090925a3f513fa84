"""Train the demo model, and write it as a checkpoint in the published layout.

    python tools/train_demo.py runs/demo                  # about two hours on two cores
    python tools/train_demo.py runs/demo                  # goes on where it stopped
    python tools/train_demo.py runs/smoke --steps 20 --draft-steps 10     # does everything work?

First the model, then its draft block against the finished model. The folder gets `log.jsonl` (a
line every ten steps), `loss.svg`, `state.npz` to go on from, the data (made once), `draft/` with
the same of the draft block, and at the end `model/`, a checkpoint that `--model` can load.
"""

import argparse
import json
import os
import time
from pathlib import Path

from demo_training import data, draft_train, report, weights
from demo_training.config import demo_config
from demo_training.tokenizer import PATH as TOKENIZER
from demo_training.train import Plan, Steps, seconds_of, train

from dsinfer_jax.checkpoint.save import save_pretrained
from dsinfer_jax.checkpoint.vocabulary import fold_vocabulary

SHORT_ROWS, LONG_ROWS = 8, 4  # of a batch: 4 608 and 9 216 tokens
STEPS = 5000
DRAFT_STEPS = 600


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of training; default: {STEPS}")
    parser.add_argument("--draft-steps", type=int, default=DRAFT_STEPS,
                        help=f"of the draft block's training; default: {DRAFT_STEPS}")  # fmt: skip
    parser.add_argument("--rows", type=int, help="different short rows; default: all differ")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak", type=float, default=Plan.peak, help="highest learning rate")
    options = parser.parse_args()
    plan = Plan(options.steps, options.peak, options.seed)
    folder: Path = options.folder

    began = time.perf_counter()
    long_steps = sum(plan.is_long(step) for step in range(plan.steps))
    counts = {
        False: options.rows or (plan.steps - long_steps) * SHORT_ROWS,
        True: max(long_steps, 1) * LONG_ROWS,
    }
    sources = {
        long: data.stored_rows(
            data.Rows(data.LONG if long else data.SHORT, count, options.seed), folder / "data"
        )
        for long, count in counts.items()
    }
    print(f"data: {counts[False]} short and {counts[True]} long rows, "
          f"{time.perf_counter() - began:.0f} s")  # fmt: skip
    batches = data.Batches.of(sources, {False: SHORT_ROWS, True: LONG_ROWS}, options.seed)

    token_map = fold_vocabulary(TOKENIZER)
    target_config = demo_config(vocab_size=len(token_map), draft_layers=0)
    target = train(Steps(target_config, plan, token_map), batches, folder)
    report.write_plot(folder)

    config = demo_config(vocab_size=len(token_map))
    draft_plan = Plan(options.draft_steps, options.peak, options.seed, draft_train.STAGES)
    steps = draft_train.DraftSteps(config, draft_plan, token_map, target)
    trained = train(steps, batches, folder / "draft")
    report.write_draft_plot(folder / "draft")
    save_pretrained(
        weights.stored(trained, config), config, folder / "model", tokenizer_folder=TOKENIZER.parent
    )
    record = {
        "command": f"python tools/train_demo.py {folder} --steps {plan.steps} "
        f"--draft-steps {draft_plan.steps} --seed {plan.seed} --peak {plan.peak}",
        "seed": plan.seed,
        "data": data.data_hash(options.seed),
        "seconds": seconds_of(folder) + seconds_of(folder / "draft"),
        "cores": os.cpu_count(),
    }
    (folder / "model" / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
