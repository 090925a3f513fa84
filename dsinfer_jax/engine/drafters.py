"""The drafters by name."""

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.engine.drafter import Drafter, LookupDrafter, NoDrafter
from dsinfer_jax.engine.dspark import DSparkDrafter
from dsinfer_jax.engine.engine_config import EngineConfig
from dsinfer_jax.model.numerics import Numerics


def make_drafter(sizes: EngineConfig, config: ModelConfig, numerics: Numerics) -> Drafter:
    """The drafter that the sizes name, one of `settings.DRAFTERS`.

    Raises:
        ValueError: the model lacks what it needs.
    """
    if sizes.drafter == "lookup":
        return LookupDrafter(sizes.draft_tokens, sizes.max_model_len + 1)
    if sizes.drafter == "dspark":
        return DSparkDrafter(sizes.draft_tokens, config, numerics, sizes.confidence_temperatures)
    return NoDrafter()
