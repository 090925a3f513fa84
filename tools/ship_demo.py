"""Put a trained and evaluated model into the package.

    python tools/ship_demo.py runs/demo/model runs/demo/evaluation.json

Copies the checkpoint to `dsinfer_jax/demo/` and writes its card.
"""

import argparse
import json
import math
import shutil
from pathlib import Path

from demo_training.card import card

from dsinfer_jax import demo
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.parameter_table import parameter_table

MOST_BYTES = 12_000_000
_CODES_PER_BYTE = {"I8": 2}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder that train_demo.py has written")
    parser.add_argument("evaluation", type=Path, help="file that eval_demo.py has written")
    options = parser.parse_args()
    target = Path(demo.__file__).parent
    files = [path for path in options.model.iterdir() if path.suffix in (".json", ".safetensors")]
    size = sum(path.stat().st_size for path in files)
    if size > MOST_BYTES:
        raise SystemExit(f"{options.model} has {size} bytes; at most {MOST_BYTES} are shipped")
    for old in (*target.glob("*.json"), *target.glob("*.safetensors")):
        old.unlink()
    for path in files:
        shutil.copy(path, target)
    config = ModelConfig.from_pretrained(options.model)
    weights = sum(path.stat().st_size for path in files if path.suffix == ".safetensors")
    parameters = sum(
        math.prod(spec.stacked_shape) * _CODES_PER_BYTE.get(spec.dtype, 1)
        for spec in parameter_table(config)
        if spec.name and spec.dtype != "F8_E8M0"
    )
    training = json.loads((options.model / "training.json").read_text())
    evaluation = json.loads(options.evaluation.read_text())
    (target / "card.md").write_text(card(config, parameters, weights, training, evaluation))
    print(f"{target}: {size} bytes")


if __name__ == "__main__":
    main()
