"""Files of a golden folder."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dsinfer_jax.checkpoint.safetensors import SafetensorsFile

Tensors = dict[str, np.ndarray]


def read(path: Path) -> Tensors:
    """All tensors of one file."""
    file = SafetensorsFile(path)
    return {name: file.read(name) for name in file.layouts}


def prompts(folder: Path) -> Iterator[tuple[str, Tensors]]:
    """(name, tensors) of every per-prompt file, shortest prompt first."""
    files = {int(path.stem[3:]): path for path in folder.glob("len*.safetensors")}
    for length in sorted(files):
        yield f"len{length}", read(files[length])


def grouped(tensors: Tensors, pattern: str) -> dict[tuple[str, ...], Tensors]:
    """Split `prefix.name` tensors by the prefix that `pattern` matches."""
    groups: dict[tuple[str, ...], Tensors] = {}
    for name, value in tensors.items():
        match = re.match(pattern, name)
        if match:
            groups.setdefault(match.groups(), {})[name[match.end() :]] = value
    return groups
