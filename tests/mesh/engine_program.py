"""Run by mesh_engine_test.py on emulated devices: an engine on a mesh against one on one device.

Reads cases as JSON, prints as JSON which requests differ.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dsinfer_jax.config import ModelConfig, tiny
from dsinfer_jax.engine import weights
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.model import init
from dsinfer_jax.model.params import Params

PIECES: dict[str, Any] = {
    "num_hidden_layers": 4,
    "compress_ratios": [0, 2, 1, 1],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3],
    "candidate_source_layer_id": 2,
    "engram_layer_ids": [1],
}
DRAFT = {
    "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 2, 1, 1, 0],
    "dspark_noise_token_id": 2,
    "dspark_target_layer_ids": [2, 3],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 8,
    "dspark_num_experts_per_tok": 2,
}
REQUESTS = 12


def requests(vocab_size: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of many lengths, two of them alike at the start; greedy, drawn, with penalties."""
    random = np.random.default_rng(0)
    common = random.integers(3, vocab_size, 200).tolist()
    found = []
    for number in range(REQUESTS):
        own = random.integers(3, vocab_size, int(random.integers(1, 150))).tolist()
        prompt = [*common, *own] if number % 6 == 1 else own
        drawn: dict[str, Any] = {"temperature": 0.9, "seed": number, "top_p": 0.9}
        if number % 4 == 3:
            drawn["frequency_penalty"] = 0.5
        how = drawn if number % 2 else {"temperature": 0}
        found.append((prompt, SamplingParams(max_tokens=3 + number % 5, ignore_eos=True, **how)))
    return found


def answers(config: ModelConfig, params: Params, options: dict[str, Any]) -> list[Any]:
    """Tokens and log-probabilities of all requests, which get `more_tokens` than they ask for."""
    more = options.pop("more_tokens", 0)
    llm = LLM(config, params, numerics="runtime", max_model_len=512, slots=8, **options)
    asked = [
        (prompt, replace(params, max_tokens=params.max_tokens + more))
        for prompt, params in requests(config.vocab_size)
    ]
    outputs = llm.generate([prompt for prompt, _ in asked], [params for _, params in asked])
    counts = llm.engine.snapshot()
    if options.get("rebalance_steps"):
        moves = counts["dsinfer_expert_rearrangements_total"]
        steps = sum(
            counts[f'dsinfer_steps_total{{kind="{kind}"}}'] for kind in ("prefill", "decode")
        )
        assert moves >= steps / 10 > 0, (moves, steps)  # a layer moves in each step
        assert counts["dsinfer_expert_places_filled_total"] > 0
    return [(output.token_ids, output.logprobs) for output in outputs]


def differences(one: list[Any], other: list[Any]) -> Iterator[str]:
    for number, (wanted, found) in enumerate(zip(one, other)):
        if wanted != found:
            yield f"request {number}: {found} instead of {wanted}"


def main() -> None:
    result = {}
    for options, mesh in json.loads(sys.argv[1]):
        config = tiny(**PIECES | (DRAFT if options.get("drafter") == "dspark" else {}))
        params = init.init(config, seed=7)
        wanted = answers(config, params, dict(options))
        case = json.dumps([options, mesh])
        weights.OUTPUTS_FASTEST = {"cpu"} if mesh.pop("outputs_fastest", False) else set()
        result[case] = list(differences(wanted, answers(config, params, options | mesh)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
