"""The single-operation golden data, computed independently of this project."""

from functools import cache
from pathlib import Path

import numpy as np

from dsinfer_jax.checkpoint.safetensors import SafetensorsFile

_PATH = Path(__file__).parent / "data" / "ops.safetensors"

# second sources agree with the data to a few units in the last place; codes and integers are exact
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


@cache
def _file() -> SafetensorsFile:
    return SafetensorsFile(_PATH)


def golden(name: str) -> np.ndarray:
    return _file().read(name)
