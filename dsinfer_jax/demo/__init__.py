"""The embedded default model.

No trained weights are shipped yet: until they are, the demo model is the tiny configuration with
seeded random weights, and what it writes is noise.
"""

from pathlib import Path

from dsinfer_jax.checkpoint.vocabulary import fold_vocabulary
from dsinfer_jax.config import ModelConfig, tiny
from dsinfer_jax.model.init import init
from dsinfer_jax.model.params import Params

SEED = 0
DESCRIPTION = "the demo model has random weights (tiny configuration, seed 0): its text is noise"


def load() -> tuple[ModelConfig, Params, Path]:
    """Configuration, weights on the default device, and the path of the tokenizer."""
    tokenizer = Path(__file__).parent / "tokenizer.json"
    config = tiny()
    return config, init(config, SEED, token_map=fold_vocabulary(tokenizer)), tokenizer
