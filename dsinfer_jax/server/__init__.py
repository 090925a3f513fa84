"""HTTP: three API dialects around any source of tokens.

`app.py` says which path leads where, `generate.py` is one exchange, `answer.py` turns chunks of a
source into events, `sse.py` writes them. `source.py` is all that an engine has to know. Everything
that is protocol comes from `dsinfer_jax.recipe`; this room imports neither jax nor numpy.
"""

from dsinfer_jax.server.app import create_app
from dsinfer_jax.server.settings import ServerSettings
from dsinfer_jax.server.source import Infer, InferenceJob, SourceError, SourceSnapshot

__all__ = [
    "Infer",
    "InferenceJob",
    "ServerSettings",
    "SourceError",
    "SourceSnapshot",
    "create_app",
]
