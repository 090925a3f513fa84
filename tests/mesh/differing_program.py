"""Run by many_processes_test.py: the command line, with another third decode step in process 1."""

import sys
from dataclasses import replace
from typing import Any

from dsinfer_jax.engine.programs import Programs
from dsinfer_jax.generate import main

WRONG_STEP = 3


def differ() -> None:
    """Let the host of this process decide otherwise."""
    decode, calls = Programs.decode, iter(range(1, 1 << 30))

    def wrong(self: Programs, params: Any, cache: Any, form: Any, inputs: Any, masks: Any) -> Any:
        if next(calls) == WRONG_STEP:
            draws = replace(inputs.draws, top_k=inputs.draws.top_k - 1)
            inputs = replace(inputs, draws=draws)
        return decode(self, params, cache, form, inputs, masks)

    Programs.decode = wrong  # type: ignore[method-assign]


if __name__ == "__main__":
    if sys.argv[sys.argv.index("--process-id") + 1] == "1":
        differ()
    sys.exit(main())
