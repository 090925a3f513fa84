"""Time to the first token of a long prompt: nothing stored, and all but its end stored.

    python tools/bench_prefix.py [--tokens 20000] [--keep 0] [--mode exact] [--repeat 3]

The model is the tiny configuration with random weights and a longer context. The second prompt has
the first one's tokens but the last 20, as the next turn of a conversation has.
"""

import argparse
import time
from statistics import median

import numpy as np

from dsinfer_jax.config import tiny
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.request import RequestOutput
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.model.init import init

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
ENDING = 20


def first_token(llm: LLM, prompt: list[int]) -> tuple[float, RequestOutput]:
    """Seconds to the first token, and the answer."""
    start = time.perf_counter()
    (output,) = llm.generate(prompt, ONE_TOKEN)
    return time.perf_counter() - start, output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--keep", type=int, default=0)
    parser.add_argument("--mode", default="exact", choices=("exact", "bounded"))
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args()
    config = tiny(max_position_embeddings=32_768)
    llm = LLM(
        config,
        init(config, seed=0),
        max_model_len=chosen.tokens + 128,
        blocks=2 * (chosen.tokens // 128 + 2),
        prefill_rows=(128, 512),
        keep_tokens=chosen.keep,
        prefix_cache=chosen.mode,
    )
    dice = np.random.default_rng(0)
    miss, hit, computed = [], [], 0
    for _ in range(chosen.repeat):
        prompt = dice.integers(3, config.vocab_size, chosen.tokens).tolist()
        changed = [*prompt[:-ENDING], *dice.integers(3, config.vocab_size, ENDING).tolist()]
        seconds, output = first_token(llm, prompt)
        assert output.cached_tokens == 0
        miss.append(seconds)
        seconds, output = first_token(llm, changed)
        hit.append(seconds)
        computed = chosen.tokens - output.cached_tokens
    print(
        f"{chosen.tokens} tokens, keep {chosen.keep}, {chosen.mode}: miss {median(miss):.3f} s, "
        f"hit {median(hit):.3f} s ({computed} tokens computed), "
        f"ratio {median(hit) / median(miss):.4f}"
    )


if __name__ == "__main__":
    main()
