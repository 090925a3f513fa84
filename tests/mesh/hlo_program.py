"""Run by mesh_hlo_test.py on emulated devices: compiled engine programs against the planner.

Prints for each case and program the bytes of its collectives and those that are planned, and the
largest result of a gather.
"""

import json
import sys
from collections import Counter

from engine_program import DRAFT, PIECES

from dsinfer_jax.config import tiny
from dsinfer_jax.engine.devices import MeshDevices
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.engine.programs import Programs
from dsinfer_jax.mesh.hlo import collective_bytes
from dsinfer_jax.mesh.layout import MeshLayout
from dsinfer_jax.model import init
from dsinfer_jax.model.numerics import RUNTIME
from dsinfer_jax.plan.collectives import collectives
from dsinfer_jax.plan.load import Wishes, load_of

ROWS = 256
SUM_BYTES = 4  # CPUs widen bf16 where they add


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
            found = collective_bytes(program.compiled.as_text())
            result.append(
                {"case": [dp, ep, cp, form, keep, phase], "found": found, "planned": planned}
            )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
