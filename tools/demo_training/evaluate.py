"""How good a model is on the held-out split, under different ways of running it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demo_training import data
from demo_training.checks import score
from demo_training.tasks import TASKS
from demo_training.tasks.lookup import LookUp
from demo_training.tasks.task import Draw, Item, Split
from dsinfer_jax import _jax
from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import POLICIES
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket, Slice, prefill_plan

FAR_FACTS = 155  # of a look-up text of 2 000 tokens
ANSWER_TOKENS = 260
LONG_ANSWER_TOKENS = 640
_PERPLEXITY_ROWS = 32
_SEED = 1000  # away from the seeds of training


@dataclass(frozen=True)
class Variant:
    """One way of running a model.

    Attributes:
        options: of `LLM`.
        twice: ask everything twice and judge the second answers, whose prefixes are cached.
        change: what is done to the weights first.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    twice: bool = False
    change: str = ""


@dataclass
class Tally:
    """Scores of one task."""

    items: int = 0
    right: int = 0
    valid: int = 0
    new_items: int = 0
    new_right: int = 0

    def add(self, right: bool, valid: bool, new_wording: bool) -> None:
        self.items += 1
        self.right += right
        self.valid += valid
        self.new_items += new_wording
        self.new_right += right and new_wording


def variants(keep: Sequence[int]) -> list[Variant]:
    """The ways that the table of the model card compares."""
    kept = keep[0]
    return [
        Variant("runtime", {"numerics": "runtime"}),
        Variant("exact", {"numerics": "exact"}),
        Variant("reference", {"numerics": "reference"}),
        *(Variant(f"keep {count}", {"keep_tokens": count}) for count in keep),
        Variant(f"keep {kept}, exact replay", {"keep_tokens": kept}, twice=True),
        Variant(
            f"keep {kept}, bounded replay",
            {"keep_tokens": kept, "prefix_cache": "bounded"},
            twice=True,
        ),
        Variant("random selection", change="random selection"),
        Variant("no n-gram memory", change="no n-gram memory"),
    ]


def items(task: str, count: int) -> list[Item]:
    """Held-out items of a task; look-ups in far texts have 2 000 tokens."""
    chosen = TASKS[task]
    if isinstance(chosen, LookUp) and task == "lookup_far":
        chosen = replace(chosen, fewest=FAR_FACTS)
    draws = (Draw.of(Random(f"{_SEED} {task} {number}"), Split.HELD_OUT) for number in range(count))
    return [chosen.make(draw) for draw in draws]


def changed(params: Params, change: str) -> Params:
    """Weights without something that was learned.

    Raises:
        ValueError: an unknown change.
    """
    if not change:
        return params
    if change == "random selection":  # index scores of noise choose as many keys
        assert params.indexers is not None
        random = np.random.default_rng(0)
        weights = params.indexers.weights_proj
        noise = jnp.asarray(random.standard_normal(weights.shape), weights.dtype)
        queries = params.indexers.wq_b
        codes = random.permutation(np.asarray(queries.weight).reshape(-1))
        shuffled = jnp.asarray(codes.reshape(queries.weight.shape))
        indexers = replace(
            params.indexers, weights_proj=noise, wq_b=replace(queries, weight=shuffled)
        )
        return replace(params, indexers=indexers)
    if change == "no n-gram memory":
        silent = tuple(
            replace(one, wkv=replace(one.wkv, weight=jnp.zeros_like(one.wkv.weight)))
            for one in params.engrams
        )
        return replace(params, engrams=silent)
    raise ValueError(f"change is {change!r}; it must be 'random selection' or 'no n-gram memory'")


def evaluate(
    config: ModelConfig, params: Params, variant: Variant, tasks: Sequence[str], count: int
) -> dict[str, Tally]:
    """Greedy answers of all tasks, scored."""
    llm = LLM(
        config, changed(params, variant.change), max_model_len=3072, slots=16,
        prefill_rows=(256, 1024), **{"numerics": "runtime", **variant.options},
    )  # fmt: skip
    renderer = data.renderer()
    tallies: dict[str, Tally] = {}
    for task in tasks:
        asked = items(task, count)
        prompts = [renderer.prompt(item) for item in asked]
        longest = LONG_ANSWER_TOKENS if task == "copying_long" else ANSWER_TOKENS
        params_of_task = SamplingParams(max_tokens=longest, temperature=0)
        if variant.twice:
            llm.generate(prompts, replace(params_of_task, max_tokens=1))
        outputs = llm.generate(prompts, params_of_task)
        tallies[task] = Tally()
        for item, output in zip(asked, outputs):
            result = score(item, output.token_ids, renderer.tokenizer)
            tallies[task].add(result.right, result.valid, item.new_wording)
    llm.close()
    return tallies


def perplexity(config: ModelConfig, params: Params, numerics: str) -> float:
    """Of what assistants say in held-out rows, one document after another through the engine."""
    policy = POLICIES[numerics]
    length = data.SHORT.length
    blocks = -(-length // CACHE_BLOCK_TOKENS)
    bucket = Bucket(rows=length, sequences=8, table_width=blocks, outputs=length, tile_rows=32)
    sizes = caches.CacheSizes(slots=8, blocks=blocks)

    def surprise(params: Params, plan: Any, targets: jax.Array) -> jax.Array:
        cache = caches.init(config, sizes, policy)
        _, result = forward(params, cache, plan, config, policy)
        laws = jax.nn.log_softmax(result.logits, axis=-1)
        return -jnp.take_along_axis(laws, targets[:, None], axis=-1)[:, 0]

    compiled = _jax.jit(surprise)
    total, said = 0.0, 0
    for number in range(_PERPLEXITY_ROWS):
        one = data.example(number, _SEED, Split.HELD_OUT, data.SHORT_MIXTURE)
        tokens = one.token_ids[:length]
        part = Slice(
            slot=0, token_ids=tokens.tolist(), start=0, known_length=len(tokens),
            blocks=list(range(-(-len(tokens) // CACHE_BLOCK_TOKENS))),
            outputs=list(range(len(tokens))),
        )  # fmt: skip
        targets = np.zeros(length, np.int32)
        targets[: len(tokens) - 1] = tokens[1:]
        found = np.asarray(compiled(params, prefill_plan([part], bucket, config), targets))
        wanted = one.loss_mask[1 : len(tokens)]
        total += float(found[: len(tokens) - 1][wanted].sum())
        said += int(wanted.sum())
    return float(np.exp(total / said))
