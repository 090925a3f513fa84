"""The model that most tests of the engine run: tiny, with random weights, so what it says is noise.

It exercises all mathematics, compiles fast, and every token is about equally likely, which is where
bits differ first.
"""

from pathlib import Path

from dsinfer_jax.checkpoint.vocabulary import fold_vocabulary
from dsinfer_jax.config import ModelConfig, tiny
from dsinfer_jax.model.init import init
from dsinfer_jax.model.params import Params

TOKENIZER = Path(__file__).parent / "data" / "tokenizer_512.json"
_SEED = 0


def load() -> tuple[ModelConfig, Params, Path]:
    """Configuration, weights and the path of the tokenizer."""
    config = tiny()
    return config, init(config, _SEED, token_map=fold_vocabulary(TOKENIZER)), TOKENIZER
