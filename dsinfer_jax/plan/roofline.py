"""The least time of a step: products at the peak rate, bytes at the memory's, links at theirs.

Each kind of work takes the longer of its products and its bytes; kinds run one after another. What
a program reaches is less: this is the bound to hold measurements against. Loads of ranks count as
even; multiply the experts' share by the measured `moe_lb` for what balancing leaves.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from dsinfer_jax.config import ModelConfig
from dsinfer_jax.model import cache
from dsinfer_jax.model.cache import CacheSizes, Stored
from dsinfer_jax.model.numerics import RUNTIME
from dsinfer_jax.model.parameter_table import TensorSpec, parameter_table
from dsinfer_jax.plan.chips import Chip
from dsinfer_jax.plan.collectives import Collective
from dsinfer_jax.plan.load import Load
from dsinfer_jax.plan.sizes import makes_keys, parameters, part_of, specs_of, stored_bytes

_FORMATS = {"F8_E4M3": "fp8", "I8": "fp8", "BF16": "bf16", "F32": "f32"}  # e2m1 meets e4m3 rows
_STREAM_PASSES = 6  # reads and writes of all streams in a layer: two sub-layers, mix and post
_SHARED_KEYS_ROWS = 128  # rows of a sequence that scan index keys together in prefill


@dataclass
class Work:
    """What one device does for one purpose in a step.

    Attributes:
        flops: floating-point operations by number format.
        bytes: read from and written to memory.
    """

    flops: Counter[str] = field(default_factory=Counter)
    bytes: float = 0.0

    def compute_seconds(self, chip: Chip) -> float:
        return sum(count / chip.rate(name) for name, count in self.flops.items())

    def memory_seconds(self, chip: Chip) -> float:
        return self.bytes / chip.bandwidth

    def seconds(self, chip: Chip) -> float:
        return max(self.compute_seconds(chip), self.memory_seconds(chip))


def work_of(config: ModelConfig, load: Load) -> dict[str, Work]:
    """Work of one device in a step, by purpose."""
    return {
        "dense weights": _dense(config, load),
        "experts": _experts(config, load),
        "attention": _attention(config, load),
        "index scores": _index(config, load),
        "streams": _streams(config, load),
        "n-gram rows": _engram_rows(config, load),
        "draft": _draft(config, load),
        "head": _head(config, load),
    }


def _layers_by_half(spec: TensorSpec, config: ModelConfig) -> tuple[int, int]:
    """Layers of a leaf that all rows pass, and those that only consumer rows pass."""
    if spec.layers is None or makes_keys(spec):
        return len(spec.layers or (0,)), 0
    producers = sum(layer < config.first_consumer_layer for layer in spec.layers)
    return producers, len(spec.layers) - producers


def _dense(config: ModelConfig, load: Load) -> Work:
    """Matrices that are on every device: read once, all rows pass."""
    work = Work()
    for spec in specs_of(config, ("attention", "mixing", "shared experts", "engram")):
        weights, layers = parameters(spec), len(spec.layers or (0,))
        if len(spec.shape) < 2 or not weights:
            continue  # norms and biases, scales
        producers, consumers = _layers_by_half(spec, config)
        rows = producers * load.rows + consumers * load.consumer_rows
        work.flops[_FORMATS[spec.dtype]] += 2 * weights // layers * rows
    work.bytes += sum(
        map(stored_bytes, specs_of(config, ("attention", "mixing", "shared experts", "engram")))
    )
    return work


def _experts(config: ModelConfig, load: Load) -> Work:
    producers = config.first_consumer_layer
    work = Work()
    for layers, rows in (
        (producers, load.rows),
        (config.num_hidden_layers - producers, load.consumer_rows),
    ):
        _add_experts(
            work, config, load, layers, rows, config.num_experts_per_tok,
            config.n_routed_experts, "experts",
        )  # fmt: skip
    return work


def _add_experts(
    work: Work,
    config: ModelConfig,
    load: Load,
    layers: int,
    rows: int,
    choices: int,
    experts: int,
    part: str,
) -> None:
    """Routed experts: products of the device's pairs, and the places that any row chose."""
    specs = list(specs_of(config, (part,)))
    stacked = experts * len(specs[0].layers or (0,))
    each = sum(map(parameters, specs)) // stacked
    each_bytes = sum(map(stored_bytes, specs)) // stacked
    group = load.layout.expert_parallel
    sizes = load.places(experts)
    pairs = rows * choices
    chosen = 1 - (1 - 1 / sizes.places) ** (pairs * group)
    work.flops["fp8"] += round(2.0 * each * pairs * layers)
    work.bytes += sizes.per_rank * chosen * each_bytes * layers


def _record_bytes(stored: Stored | None) -> int:
    """Bytes of one vector in a cache format."""
    assert stored is not None
    return cache.tree_bytes(stored) // math.prod(stored.codes.shape[:-1])


def _attention(config: ModelConfig, load: Load) -> Work:
    """Scores and sums over window keys and chosen keys, which every row gathers for itself."""
    tree = cache.abstract(config, CacheSizes(slots=1, blocks=1), RUNTIME)
    work = Work()
    width = config.num_attention_heads * config.head_dim
    for spec in config.layers:
        rows = load.consumer_rows if spec.consumer else load.rows
        window = min(config.sliding_window, load.keys)
        chosen = min(config.index_topk, load.keys // spec.ratio) if spec.ratio else 0
        work.flops["bf16"] += 4 * width * (window + chosen) * rows
        work.bytes += rows * window * _record_bytes(tree.window)
        if chosen:
            work.bytes += rows * chosen * _record_bytes(tree.main[spec.ratio])
    return work


def _index(config: ModelConfig, load: Load) -> Work:
    """Scores of every visible index key, or of those in the candidate blocks."""
    tree = cache.abstract(config, CacheSizes(slots=1, blocks=1), RUNTIME)
    work = Work()
    for spec in config.layers:
        if not spec.owns_index:
            continue
        rows = load.consumer_rows if spec.consumer else load.rows
        keys = load.keys // spec.ratio
        if spec.candidates == "restricted":
            keys = min(keys, config.candidate_topk_blocks * config.candidate_block_size)
        work.flops["fp8"] += 2 * config.index_n_heads * config.index_head_dim * keys * rows
        readers = load.sequences if load.phase == "decode" else -(-rows // _SHARED_KEYS_ROWS)
        if spec.candidates == "restricted":
            readers = rows  # every row has candidates of its own
        work.bytes += readers * keys * _record_bytes(tree.index[spec.ratio])
    return work


def _streams(config: ModelConfig, load: Load) -> Work:
    producers = config.first_consumer_layer
    rows = producers * load.rows + (config.num_hidden_layers - producers) * load.consumer_rows
    return Work(bytes=float(rows * config.hc_mult * config.hidden_size * 2 * _STREAM_PASSES))


def _engram_rows(config: ModelConfig, load: Load) -> Work:
    """Rows of the tables, read where they lie: every device serves its share of all rows."""
    work = Work()
    for spec in specs_of(config, ("engram table",)):
        assert config.engram is not None
        row_bytes = stored_bytes(spec) // spec.shape[0]
        work.bytes += load.rows * config.engram.columns * row_bytes
    return work


def _draft(config: ModelConfig, load: Load) -> Work:
    """The draft block in decode; in prefill only its main keys, which are small."""
    work, draft = Work(), config.draft
    if draft is None or not load.draft_rows:
        return work
    for spec in parameter_table(config):
        if part_of(spec) == "draft":
            work.bytes += stored_bytes(spec)
            if len(spec.shape) > 1 and parameters(spec) and "markov_embed" not in spec.path:
                rows = load.rows if "main_proj" in spec.path else load.draft_rows
                work.flops[_FORMATS[spec.dtype]] += 2 * parameters(spec) * rows
    _add_experts(
        work, config, load, draft.layers, load.draft_rows, draft.experts_per_token,
        draft.experts, "draft experts",
    )  # fmt: skip
    return work


def _head(config: ModelConfig, load: Load) -> Work:
    """Logits of the rows that want them, and of drafts."""
    rows = load.outputs + load.draft_rows
    weights = config.vocab_size * config.hidden_size
    return Work(Counter(bf16=2 * weights * rows), 2.0 * weights + 4.0 * rows * config.vocab_size)


def link_seconds(collective: Collective, chip: Chip) -> float:
    """The least time of one kind of collective of a step.

    In a torus, rows to all devices share the links across its middle, which are fewer than those
    of all devices: a side of k devices makes an exchange k / 8 links' time (a gather passes
    everything through every device and is not slower for it). Out of the domain, the part for
    devices elsewhere goes over the network.
    """
    if collective.group <= 1:
        return 0.0
    inside = min(collective.group, chip.domain)
    share = (inside - 1) / (collective.group - 1)
    seconds = collective.sent * share / chip.link
    if chip.torus and "all-to-all" in collective.operation:
        side = inside ** (1 / chip.torus)
        one_link = chip.link / (2 * chip.torus)
        seconds = max(seconds, collective.sent * share * side / 8 / one_link)
    if share < 1:
        if not chip.network:
            return math.inf
        seconds = max(seconds, collective.sent * (1 - share) / chip.network)
    return seconds
