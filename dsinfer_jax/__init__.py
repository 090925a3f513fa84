"""DeepSeek-V4.1-Flash in JAX.

The public names load on first use, so `import dsinfer_jax` costs milliseconds and
`import dsinfer_jax.recipe` needs neither jax nor numpy.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC_NAMES = {
    "AsyncEngine": "dsinfer_jax.engine.async_engine",
    "LLM": "dsinfer_jax.engine.llm",
    "ModelConfig": "dsinfer_jax.config",
    "RequestOutput": "dsinfer_jax.engine.request",
    "SamplingParams": "dsinfer_jax.engine.request",
}

__all__ = ["LLM", "AsyncEngine", "ModelConfig", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(importlib.import_module(_PUBLIC_NAMES[name]), name)
    raise AttributeError(f"module 'dsinfer_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
