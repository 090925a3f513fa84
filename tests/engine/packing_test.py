"""A tree of small arrays through one vector and back."""

import jax
import numpy as np

from dsinfer_jax.engine.packing import Packing, pack_on_device


def a_tree() -> dict:
    random = np.random.default_rng(0)
    return {
        "mask": random.integers(0, 2, 13).astype(bool),
        "ids": random.integers(-(2**31), 2**31, (3, 5)).astype(np.int32),
        "masses": random.integers(0, 2**32, (4,), np.uint32),
        "temperature": np.array([0.0, -0.0, np.inf, 1e-45, np.pi], np.float32),
        "absent": None,
        "empty": np.zeros((0, 3), np.int32),
    }


def test_every_bit_returns() -> None:
    """Host to device, and device to host."""
    tree = a_tree()
    packing = Packing(tree)
    vector = packing.pack(tree)
    assert vector.dtype == np.int32
    assert vector.shape == (packing.size,)
    check_equal(jax.jit(packing.unpack)(vector), tree)
    check_equal(packing.unpack_host(np.asarray(jax.jit(pack_on_device)(tree))), tree)


def check_equal(back: dict, tree: dict) -> None:
    assert back.keys() == tree.keys()
    assert back["absent"] is None
    for name, leaf in tree.items():
        if leaf is not None:
            got = np.asarray(back[name])
            assert (got.dtype, got.shape, got.tobytes()) == (leaf.dtype, leaf.shape, leaf.tobytes())
