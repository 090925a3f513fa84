"""The embedded default model: small, of the published architecture, trained by this project.

What it can do, how it was made and how good it is: `card.md` beside this file, docs/demo_model.md.
"""

from pathlib import Path

from dsinfer_jax.checkpoint import load_pretrained
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model.params import Params

FOLDER = Path(__file__).parent
DESCRIPTION = (
    "the demo model is small and knows a few tasks: greetings, arithmetic, looking things up, "
    "tool calls (docs/demo_model.md)"
)


def load() -> tuple[ModelConfig, Params, Path]:
    """Configuration, weights on the default device, and the path of the tokenizer."""
    config, params = load_pretrained(FOLDER)
    return config, params, FOLDER / "tokenizer.json"
