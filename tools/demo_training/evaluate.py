"""How good a model is on the held-out split, under different ways of running it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from demo_training import data
from demo_training.checks import score
from demo_training.render import converted
from demo_training.tasks import TASKS
from demo_training.tasks.lookup import LookUp
from demo_training.tasks.task import Draw, Item, Split
from dsinfer_jax import _jax
from dsinfer_jax.config import CACHE_BLOCK_TOKENS, ModelConfig
from dsinfer_jax.engine.detokenise import TextCodec
from dsinfer_jax.engine.llm import LLM
from dsinfer_jax.engine.sampling_params import SamplingParams
from dsinfer_jax.engine.structured_output import StructuredOutput
from dsinfer_jax.generate.chat import structured_output
from dsinfer_jax.generate.chat_request import constraint_of
from dsinfer_jax.model import cache as caches
from dsinfer_jax.model.forward import forward
from dsinfer_jax.model.numerics import POLICIES
from dsinfer_jax.model.params import Params
from dsinfer_jax.model.plan import Bucket, Plan, Slice, prefill_plan

CALLS = "tool_calls, calls"
TASK_NAMES = (*TASKS, CALLS)
FAR_FACTS = {"lookup_far": 145, "lookup_pair_far": 135, "copying_far": 140}  # 2 000 tokens
ANSWER_TOKENS = 260
LONG_ANSWER_TOKENS = 640
_ROWS = 32
_SEED = 1000  # away from the seeds of training


@dataclass(frozen=True)
class Variant:
    """One way of running a model.

    Attributes:
        options: of `LLM`.
        config: fields of the configuration that are changed.
        constrained: keep answers to the request's schema; wanted calls are required.
        twice: ask everything twice and judge the second answers, whose prefixes are cached.
        change: what is done to the weights first.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    constrained: bool = False
    twice: bool = False
    change: str = ""


@dataclass
class Tally:
    """Scores of one task.

    Attributes:
        tokens, steps: of its answers, and decode steps that gave them, each counted for each
            request: more than one token a step where a drafter runs.
    """

    items: int = 0
    right: int = 0
    valid: int = 0
    new_items: int = 0
    new_right: int = 0
    tokens: int = 0
    steps: int = 0

    def add(self, right: bool, valid: bool, new_wording: bool) -> None:
        self.items += 1
        self.right += right
        self.valid += valid
        self.new_items += new_wording
        self.new_right += right and new_wording


class Evaluation(NamedTuple):
    """One variant, scored.

    Attributes:
        tallies: by task.
        accepted: share of the drafts at each place that stayed, of all tasks together; empty
            without a drafter.
    """

    tallies: dict[str, Tally]
    accepted: list[float]


def variants(keep: Sequence[int]) -> list[Variant]:
    """The ways that the table of the model card compares."""
    kept = keep[0]
    return [
        Variant("runtime", {"numerics": "runtime"}),
        Variant("exact", {"numerics": "exact"}),
        Variant("reference", {"numerics": "reference"}),
        Variant("constrained", constrained=True),
        Variant("e4m3 cache", config={"use_fp4_sparse_kv": False}),
        *(Variant(f"keep {tokens}", {"keep_tokens": tokens}) for tokens in keep),
        Variant(f"keep {kept}, exact replay", {"keep_tokens": kept}, twice=True),
        Variant(
            f"keep {kept}, bounded replay",
            {"keep_tokens": kept, "prefix_cache": "bounded"},
            twice=True,
        ),
        Variant("dspark", {"drafter": "dspark"}),
        Variant("random selection", change="random selection"),
        Variant("no n-gram memory", change="no n-gram memory"),
    ]


def items(task: str, number: int) -> list[Item]:
    """Held-out items of a task.

    Look-ups and copies in far texts have 2 000 tokens; `CALLS` are the items of "tool_calls" whose
    answer is a call.
    """
    chosen = TASKS["tool_calls" if task == CALLS else task]
    if isinstance(chosen, LookUp) and task in FAR_FACTS:
        chosen = replace(chosen, fewest=FAR_FACTS[task])
    draws = (Draw.of(Random(f"{_SEED} {task} {place}"), Split.HELD_OUT) for place in count())
    made = (chosen.make(draw) for draw in draws)
    return list(islice((one for one in made if task != CALLS or one.answer.calls), number))


def wanted_tasks(variant: Variant, tasks: Sequence[str]) -> list[str]:
    """Of these tasks the ones that a variant says something about."""
    if variant.constrained:
        return [task for task in tasks if task in (CALLS, "json_answers")]
    return list(tasks)


def expert_shares(counts: np.ndarray) -> np.ndarray:
    """How much of its fair share of a layer's pairs each expert has: like `counts`."""
    return counts / counts.sum(axis=1, keepdims=True) * counts.shape[1]


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
    config: ModelConfig,
    params: Params,
    codec: TextCodec,
    variant: Variant,
    tasks: Sequence[str],
    number: int,
) -> Evaluation:
    """Greedy answers of all tasks, scored."""
    llm = LLM(
        replace(config, **variant.config), changed(params, variant.change), codec,
        max_model_len=3072, slots=16, prefill_rows=(256, 1024),
        **{"numerics": "runtime", **variant.options},
    )  # fmt: skip
    renderer = data.renderer()
    tallies: dict[str, Tally] = {}
    for task in tasks:
        asked = items(task, number)
        if variant.constrained:
            asked = [_with_required_calls(item) for item in asked]
        prompts = [renderer.prompt(item) for item in asked]
        longest = LONG_ANSWER_TOKENS if task == "copying_long" else ANSWER_TOKENS
        free = SamplingParams(max_tokens=longest, temperature=0)
        if variant.twice:
            llm.generate(prompts, replace(free, max_tokens=1))
        constraints = [_constraint(item, codec) if variant.constrained else None for item in asked]
        outputs = llm.generate(
            prompts, [replace(free, structured_output=constraint) for constraint in constraints]
        )
        tallies[task] = Tally()
        for item, output in zip(asked, outputs):
            result = score(item, output.token_ids, renderer.tokenizer)
            tallies[task].add(result.right, result.valid, item.new_wording)
            tallies[task].tokens += len(output.token_ids) - 1  # prefill draws the first
            tallies[task].steps += len(output.token_ids) - 1 - output.accepted_tokens
    llm.close()
    stats = llm.engine.request_stats
    drafted, accepted = stats.drafted_tokens, stats.accepted_tokens
    return Evaluation(tallies, [accepted[place] / drafted[place] for place in sorted(drafted)])


def _with_required_calls(item: Item) -> Item:
    """The item as a client asks who must have a call; thinking does not go with it."""
    if not item.answer.calls:
        return item
    body = item.body | {"tool_choice": "required", "thinking": {"type": "disabled"}}
    body.pop("reasoning_effort", None)
    return replace(item, body=body)


def _constraint(item: Item, codec: TextCodec) -> StructuredOutput | None:
    """What a server would enforce."""
    constraint = constraint_of(converted(item))
    return None if constraint is None else structured_output(constraint, codec)


@dataclass(frozen=True)
class HeldOutRows:
    """What the engine says of held-out conversations, token by token.

    Attributes:
        perplexity: of what assistants say.
        expert_counts: [layers, experts] pairs of all tokens; layers of the draft are not among
            them.
    """

    perplexity: float
    expert_counts: np.ndarray


class ReadConversation(NamedTuple):
    """A conversation as the engine's forward pass reads it.

    Attributes:
        surprise: [tokens - 1] float32, of each next token, in nats.
        said: [tokens - 1] bool: an assistant says the next token.
        choices: [tokens, layers, experts per token] int32, the experts of every token.
    """

    surprise: np.ndarray
    said: np.ndarray
    choices: np.ndarray


def read_rows(config: ModelConfig, params: Params, numerics: str) -> HeldOutRows:
    """Perplexity and use of experts over some held-out conversations."""
    total, said = 0.0, 0
    counts = np.zeros((config.num_hidden_layers, config.n_routed_experts), np.int64)
    for one in islice(read_conversations(config, params, numerics), _ROWS):
        total += float(one.surprise[one.said].sum())
        said += int(one.said.sum())
        for layer, row in enumerate(counts):
            row += np.bincount(one.choices[:, layer].reshape(-1), minlength=len(row))
    return HeldOutRows(float(np.exp(total / said)), counts)


def read_conversations(
    config: ModelConfig, params: Params, numerics: str
) -> Iterator[ReadConversation]:
    """Held-out conversations through the engine's forward pass, one after another, without end."""
    policy = POLICIES[numerics]
    length = data.SHORT.length
    blocks = -(-length // CACHE_BLOCK_TOKENS)
    bucket = Bucket(rows=length, sequences=8, table_width=blocks, outputs=length, tile_rows=32)
    sizes = caches.CacheSizes(slots=8, blocks=blocks)

    def run(params: Params, plan: Plan, targets: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        chosen: list[jax.Array] = []

        def observe(name: str, layer: int, value: jax.Array) -> jax.Array:
            if name == "router_ids":
                chosen.append(value)
            return value

        cache = caches.init(config, sizes, policy)
        _, result = forward(params, cache, plan, config, policy, observe)
        laws = jax.nn.log_softmax(result.logits, axis=-1)
        return -jnp.take_along_axis(laws, targets[:, None], axis=-1)[:, 0], chosen

    compiled = _jax.jit(run)
    for number in count():
        one = data.example(number, _SEED, Split.HELD_OUT, data.SHORT_MIXTURE)
        tokens = one.token_ids[:length]
        part = Slice(
            slot=0, token_ids=tokens.tolist(), start=0, known_length=len(tokens),
            blocks=list(range(-(-len(tokens) // CACHE_BLOCK_TOKENS))),
            outputs=list(range(len(tokens))),
        )  # fmt: skip
        targets = np.zeros(length, np.int32)
        targets[: len(tokens) - 1] = tokens[1:]
        surprise, chosen = compiled(params, prefill_plan([part], bucket, config), targets)
        choices = np.stack([np.asarray(layer)[: len(tokens)] for layer in chosen], axis=1)
        yield ReadConversation(
            np.asarray(surprise)[: len(tokens) - 1], one.loss_mask[1 : len(tokens)], choices
        )
