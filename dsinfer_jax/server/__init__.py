"""HTTP: three API dialects around any source of tokens.

`app.py` says which path leads where, `generate.py` is one exchange, `answer.py` turns chunks of a
source into events, `sse.py` writes them. `source.py` is all that an engine has to know. Everything
that is protocol comes from `dsinfer_jax.recipe`; this room imports neither jax nor numpy.

Public names are imported when they are used: the conformance kit needs no web framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsinfer_jax.server.app import create_app
    from dsinfer_jax.server.settings import ServerSettings
    from dsinfer_jax.server.source import Infer, InferenceJob, SourceError, SourceSnapshot

_MODULES = {
    "Infer": "source",
    "InferenceJob": "source",
    "ServerSettings": "settings",
    "SourceError": "source",
    "SourceSnapshot": "source",
    "create_app": "app",
}

__all__ = [
    "Infer",
    "InferenceJob",
    "ServerSettings",
    "SourceError",
    "SourceSnapshot",
    "create_app",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
