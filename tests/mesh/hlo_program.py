"""Run by mesh_hlo_test.py on emulated devices: compiled engine programs against the planner.

Prints for each case and program the bytes of its collectives and those that are planned, and which
experts, tables or caches a device gathers, whole or a layer of them.
"""

import json
import sys
from collections import Counter
from typing import Any

import jax
from engine_program import DRAFT, PIECES

from dsinfer_jax.config import tiny
from dsinfer_jax.engine.devices import MeshDevices
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.programs import Programs
from dsinfer_jax.mesh.hlo import collective_bytes, gathered_shapes, without_ones
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.model import init
from dsinfer_jax.model.numerics import RUNTIME
from dsinfer_jax.plan.collectives import collectives
from dsinfer_jax.plan.load import Wishes, load_of

ROWS = 256
SUM_BYTES = 4  # CPUs widen bf16 where they add


def shapes_of(tree: Any) -> set[tuple[int, ...]]:
    """Of all leaves, and of one layer of them; not of vectors."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(tree)]
    every = {without_ones(shape[layers:]) for shape in shapes for layers in (0, 1)}
    return {shape for shape in every if len(shape) > 1}


def main() -> None:
    result = []
    for dp, ep, cp, form, keep in json.loads(sys.argv[1]):
        layout = MeshLayout.of(dp, ep, cp)
        drafts = 5 if keep else 0
        config = tiny(**PIECES | (DRAFT if drafts else {}))
        sizes = EngineConfig.of(
            config, max_model_len=512, slots=8, prefill_rows=(ROWS,), keep_tokens=keep,
            layout=layout, drafter="dspark" if drafts else "off", draft_tokens=5,
            exchange=form,
        )  # fmt: skip
        devices = MeshDevices(config, sizes, RUNTIME)
        params = devices.params(init.init(config, seed=7))
        programs = Programs(params, config, RUNTIME, sizes, devices=devices)
        wishes = Wishes(
            context=512, requests=8 * layout.data_parallel, prefill_rows=ROWS, drafts=drafts,
            keep=keep, redundant={"prefill": 0, "decode": 0}, exchange=form, memory_share=1.0,
        )  # fmt: skip
        for phase, program in (
            ("prefill", programs._prefill[ROWS]),
            ("decode", programs._decode[sizes.decode_forms[-1]]),
        ):
            if phase == "decode" and cp > 1:
                continue  # the planner knows no such decode
            planned: Counter[str] = Counter()
            load = load_of(config, layout, phase, wishes)
            for one in collectives(config, load, form, SUM_BYTES):
                planned[one.operation] += one.bytes
            text = program.compiled.as_text()
            found = collective_bytes(text)
            divided = params.experts, [one.embed for one in params.engrams]
            gathered = gathered_shapes(text)
            result.append({
                "case": [dp, ep, cp, form, keep, phase], "found": found, "planned": planned,
                "gathered": sorted(gathered & shapes_of((*divided, devices.abstract_cache()))),
            })  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
