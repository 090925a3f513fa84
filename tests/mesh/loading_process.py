"""Run by mesh_loading_test.py as one of several processes: weights of a mesh that spans them.

Prints as JSON how many bytes this process has read for its own devices, and which leaves are wrong.
"""

import argparse
import json
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from dsinfer_jax.checkpoint import PlaceRule, leaf_reader, load_pretrained
from dsinfer_jax.checkpoint.orbax_tree import load_orbax, save_orbax
from dsinfer_jax.model.parameter_table import parameter_table
from dsinfer_jax.model.params import Params, leaf_at

FIRST, SECOND = (1, 4, 1), (2, 1, 2)


class CountedBytes:
    """Stands in for the progress bar."""

    read = 0

    def __init__(self, *_: Any) -> None:
        pass

    def add(self, count: int) -> None:
        CountedBytes.read += count

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--coordinator")
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--process-id", type=int)
    parser.add_argument("--cache-dir")
    options = parser.parse_args()
    jax.distributed.initialize(options.coordinator, options.num_processes, options.process_id)
    from loading_cases import is_there, random_places

    config, params = load_pretrained(options.folder)

    def wrong(loaded: Params, rule: PlaceRule) -> list[str]:
        table = parameter_table(config)
        return [
            one.dotted for one in table if not is_there(one, leaf_at(loaded, one), params, rule)
        ]

    rule = random_places(config, FIRST, 0, seed=0)
    with mock.patch.object(leaf_reader, "Progress", CountedBytes):
        loaded = load_pretrained(options.folder, place=rule)[1]
    result: dict[str, Any] = {"read": CountedBytes.read, "from the checkpoint": wrong(loaded, rule)}
    stored = options.folder / "orbax"
    save_orbax(stored, loaded, config, place=rule, source=options.folder)
    rule = random_places(config, SECOND, 1, seed=1)
    result["from the layout before"] = wrong(load_orbax(stored, config, place=rule), rule)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
