"""`python -m dsinfer_jax.plan`: bytes, traffic, time and programs of a deployment, beforehand.

Sizes come from `model.parameter_table` and `model.cache`, layouts from `mesh.layout` and
`mesh.rules`, shapes of programs from the engine. No weights, no devices, nothing compiled.
"""

import json
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 if all fits, 1 if not, 2 for what is impossible."""
    from dsinfer_jax.plan.options import parse

    try:
        request = parse(sys.argv[1:] if arguments is None else arguments)
        from dsinfer_jax.plan.planner import plan_phase
        from dsinfer_jax.plan.report import as_json, as_text

        plans = [
            plan_phase(request.config, layout, phase, request.wishes, request.chip)
            for phase, layout in request.layouts.items()
        ]
        if request.picture is not None:
            from dsinfer_jax.plan.picture import draw

            request.picture.write_text(
                draw(plans, request.config.n_routed_experts), encoding="utf-8"
            )
    except (ValueError, OSError) as error:  # LayoutError, ConfigError, a picture's folder
        print(f"plan: {error}", file=sys.stderr)
        return 2
    if request.as_json:
        print(json.dumps(as_json(request, plans), indent=2))
    else:
        print(as_text(request, plans))
    return 0 if all(plan.memory.fits for plan in plans) else 1
