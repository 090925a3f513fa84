"""Greedy answers of the engine equal the independently computed ones, where those are present."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.request import SamplingParams

GOLDEN = Path(__file__).parents[2] / "../shared/golden"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GOLDEN.is_dir(), reason="no folder shared/golden beside the checkout"),
]


def test_greedy_continuations_equal_the_golden_ones() -> None:
    """All prompts in one call, in slices of 256 tokens, float32 throughout."""
    stored = load_file(GOLDEN / "f32" / "greedy.safetensors")
    names = sorted(name.removesuffix(".tokens") for name in stored if name.endswith(".tokens"))
    prompts = [load_file(GOLDEN / "f32" / f"{name}.safetensors")["ids"].tolist() for name in names]
    expected = [stored[f"{name}.tokens"].tolist() for name in names]
    llm = LLM.from_pretrained(GOLDEN / "ckpt", numerics="exact", max_model_len=1024)
    params = [
        SamplingParams(max_tokens=len(tokens), temperature=0, ignore_eos=True)
        for tokens in expected
    ]
    assert len(names) >= 4
    outputs = llm.generate(prompts, params)
    assert {name: output.token_ids for name, output in zip(names, outputs)} == dict(
        zip(names, expected)
    )
