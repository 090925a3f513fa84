"""Record which experts a model chooses, as a trace for `sim_eplb.py`.

    python tools/record_experts.py routing.npz                    # the embedded model
    python tools/record_experts.py routing.npz --model FOLDER --conversations 500

Held-out conversations of the demo model's tasks, as the engine's forward pass reads them.
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
from demo_training.evaluate import read_conversations

from dsinfer_jax.engine.llm import load_model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, help="the file to write, .npz")
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--numerics", default="runtime")
    options = parser.parse_args()
    config, params, _ = load_model(options.model)
    read = read_conversations(config, params, options.numerics)
    choices = [one.choices for one in islice(read, options.conversations)]
    lengths = [len(one) for one in choices]
    np.savez_compressed(
        options.trace, choices=np.concatenate(choices).astype(np.uint16), lengths=lengths,
        experts=config.n_routed_experts,
    )  # fmt: skip
    print(f"{options.trace}: {len(lengths)} conversations, {sum(lengths)} tokens")


if __name__ == "__main__":
    main()
