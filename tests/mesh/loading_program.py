"""Run by mesh_loading_test.py on emulated devices: weights read straight into their places.

Every layout is loaded from the checkpoint and from a native one, and from what Orbax has saved of
the layout before it, every second one with matrices as TPUs want them; an engine's devices
load what they make of weights in memory. Prints as JSON which leaves are wrong.
"""

import json
import sys
import tempfile
from pathlib import Path

from loading_cases import is_there, model, random_places, same, save

from dsinfer_jax.checkpoint import PlaceRule, load_native, load_pretrained
from dsinfer_jax.checkpoint.orbax_tree import load_orbax, save_orbax
from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine import weights as engine_weights
from dsinfer_jax.engine.devices import MeshDevices
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.weights import StoredWeights
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.model.numerics import RUNTIME
from dsinfer_jax.model.parameter_table import parameter_table
from dsinfer_jax.model.params import Params, leaf_at


def engine_differences(config: ModelConfig, params: Params, weights: StoredWeights) -> list[str]:
    sizes = EngineConfig.of(config, layout=MeshLayout.of(dp=2, ep=4, cp=2), redundant_experts=2)
    devices = MeshDevices(config, sizes, RUNTIME)
    wanted, found = devices.params(params), devices.load(weights)
    pairs = (
        (one.dotted, leaf_at(wanted, one), leaf_at(found, one)) for one in parameter_table(config)
    )
    return [name for name, *leaves in pairs if not same(*leaves)]


def main() -> None:
    config, params = model()

    def wrong(loaded: Params, rule: PlaceRule) -> list[str]:
        table = parameter_table(config)
        return [
            one.dotted for one in table if not is_there(one, leaf_at(loaded, one), params, rule)
        ]

    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder, native = Path(name) / "checkpoint", Path(name) / "native"
        save(folder, config, params)
        stored = None
        for number, (shape, copies) in enumerate(json.loads(sys.argv[1])):
            engine_weights.OUTPUTS_FASTEST = {"cpu"} if number % 2 else set()
            rule = random_places(config, shape, copies, seed=number)
            loaded = load_pretrained(folder, place=rule)[1]
            result[f"{shape} from the checkpoint"] = wrong(loaded, rule)
            restored = load_native(native, folder, place=rule)[1]
            result[f"{shape} from leaf files"] = wrong(restored, rule)
            if stored is not None:
                restored = load_orbax(stored, config, place=rule, source=folder)
                result[f"{shape} from the layout before"] = wrong(restored, rule)
            stored = Path(name) / f"orbax{number}"
            save_orbax(stored, loaded, config, place=rule, source=folder)
        weights = StoredWeights(folder, config, native)
        for platform in ("tpu", "cpu"):
            engine_weights.OUTPUTS_FASTEST = {platform}
            result[f"an engine, as on {platform}"] = engine_differences(config, params, weights)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
