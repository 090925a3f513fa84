"""Checkpoints: a Hugging Face folder of safetensors to the sharded parameter tree and back.

Knows files, the configuration and the parameter table. Knows no mesh (the caller says where a leaf
lies), no engine and no forward pass.
"""

from dsinfer_jax.checkpoint.errors import CheckpointError
from dsinfer_jax.checkpoint.load import load_pretrained
from dsinfer_jax.checkpoint.native import load_native, write_native
from dsinfer_jax.checkpoint.places import LeafPlace, PlaceRule
from dsinfer_jax.checkpoint.save import save_pretrained

__all__ = [
    "CheckpointError",
    "LeafPlace",
    "PlaceRule",
    "load_native",
    "load_pretrained",
    "save_pretrained",
    "write_native",
]
