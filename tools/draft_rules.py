"""How many drafts the rules of verification accept, side by side (speculative.md 6, design.md 6).

    python tools/draft_rules.py                      # the embedded model
    python tools/draft_rules.py --model FOLDER --items 20 --temperature 0.7

Held-out items of the demo model's tasks are answered greedily, by draws that are judged by the
exact rule, and by draws whose noise is shared with the drafter (deterministic mode). Every step
verifies all drafts; a place's share is of all steps, so it falls from place to place.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from demo_training import data
from demo_training.evaluate import items

from dsinfer_jax.engine.llm import LLM, load_model
from dsinfer_jax.engine.sampling_params import SamplingParams

TASKS = ("small_talk", "arithmetic", "lookup", "dates", "units", "tool_calls", "json_answers")
PLACES = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--items", type=int, default=20, help="of each task")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the draws")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    options = parser.parse_args()
    renderer = data.renderer()
    prompts = [renderer.prompt(item) for task in TASKS for item in items(task, options.items)]
    drawn = SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=1)
    ways: dict[str, tuple[SamplingParams, dict[str, Any]]] = {
        "greedy": (SamplingParams(max_tokens=options.max_tokens, temperature=0), {}),
        "exact rule": (drawn, {}),
        "shared noise": (drawn, {"deterministic": True}),
    }
    table = {}
    print("rule          tokens/step  accepted by place")
    for name, (params, how) in ways.items():
        llm = LLM(*load_model(options.model), drafter="dspark", draft_tokens=PLACES,
                  max_model_len=1024, slots=16, **how)  # fmt: skip
        llm.generate(prompts, params)
        stats = llm.engine.request_stats
        shares = [
            stats.accepted_tokens[place] / stats.drafted_tokens[place]
            for place in range(1, PLACES + 1)
        ]
        length = 1 + sum(shares)
        table[name] = {"tokens_per_step": length, "accepted_by_place": shares}
        print(f"{name:12}  {length:11.3f}  {' '.join(f'{share:.3f}' for share in shares)}",
              flush=True)  # fmt: skip
        llm.close()
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
