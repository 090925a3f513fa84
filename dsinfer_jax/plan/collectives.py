"""Bytes that cross links in a step, from the shapes alone: `mesh.company` and `mesh.exchange`.

Every collective is counted by its *buffer*: the larger of its operand and its result on one device,
which is what a compiled program shows. In a group of n devices, (n - 1) / n of it crosses a link,
twice that for a sum that everybody gets; the rest stays. Four kinds of step traffic exist:

* rows to their experts and outputs back, in every layer;
* rows of the n-gram table to the tokens that look them up, in every engram layer;
* keys of the step's rows to all ranks of a context group (prefill with cp > 1);
* rows that go on at the step into the consumer half, and those whose logits are wanted (the same).

The head is on every device, so logits stay where they are. An exchange has three forms:

    ragged   every (row, choice) pair travels to its device: `ragged_all_to_all`. Counted are the
             pairs that there are; a program shows room for the most that there could be
    slots    fixed room for the most pairs a device can send to another: one dense `all_to_all`
    gather   all rows to all devices, and a `reduce_scatter` of outputs, zero where there are none
"""

from dataclasses import dataclass

from dsinfer_jax.config import QUANTISATION_BLOCK, ModelConfig
from dsinfer_jax.plan.load import Load

FORMS = ("ragged", "slots", "gather")
_PAIR_BYTES = 8  # expert place (int32) and weight (float32) that travel with a row
_F32, _BF16, _INT32 = 4, 2, 4


@dataclass(frozen=True)
class Collective:
    """One kind of collective of a step.

    Attributes:
        name: what travels.
        operation: as in a compiled program.
        group: devices that take part.
        buffer: bytes of one call on one device.
        calls: per step.
    """

    name: str
    operation: str
    group: int
    buffer: int
    calls: int

    @property
    def bytes(self) -> int:
        """Of all calls of a step, on one device."""
        return self.buffer * self.calls

    @property
    def sent(self) -> int:
        """Bytes that leave a device in a step."""
        times = 2 if self.operation == "all-reduce" else 1
        return times * self.bytes * (self.group - 1) // self.group


def exchange(
    name: str,
    form: str,
    group: int,
    calls: int,
    *,
    rows: int,
    choices: int,
    most_to_one: int,
    row_bytes: int,
    choice_bytes: int,
    back_bytes: int,
) -> list[Collective]:
    """Rows to where their choices live, and a result for each choice back.

    Args:
        rows: of one device; each has `choices` choices.
        most_to_one: choices of a row that can live on one device.
        row_bytes: what a row sends, whatever it chooses; `choice_bytes`: what it sends per choice.
        back_bytes: the result of one choice.
    """
    if group == 1 or rows == 0:
        return []
    pair = row_bytes + choice_bytes
    if form == "ragged":
        operations = ("ragged-all-to-all", "ragged-all-to-all")
        there, back = rows * choices * pair, rows * choices * back_bytes
    elif form == "slots":
        operations = ("all-to-all", "all-to-all")
        slots = group * rows * min(choices, most_to_one)
        there, back = slots * pair, slots * back_bytes
    else:
        operations = ("all-gather", "reduce-scatter")
        there = group * rows * (row_bytes + choices * choice_bytes)
        back = group * rows * choices * back_bytes
    return [
        Collective(f"{name}: there", operations[0], group, there, calls),
        Collective(f"{name}: back", operations[1], group, back, calls),
    ]


def collectives(
    config: ModelConfig, load: Load, form: str, sum_bytes: int = _BF16
) -> list[Collective]:
    """Everything that crosses links in one step.

    Args:
        form: one of FORMS.
        sum_bytes: of a bf16 number in a collective that adds; 4 on CPUs, which widen it.
    """
    return [
        *_expert_exchanges(config, load, form, sum_bytes),
        *_engram_exchange(config, load, form),
        *_context_group(config, load, sum_bytes),
    ]


def expert_row_bytes(config: ModelConfig) -> int:
    """A row on its way to an expert: e4m3 codes and a scale byte for every 32."""
    return config.hidden_size + config.hidden_size // QUANTISATION_BLOCK


def _expert_exchanges(
    config: ModelConfig, load: Load, form: str, sum_bytes: int
) -> list[Collective]:
    producers = config.first_consumer_layer
    consumers = config.num_hidden_layers - producers
    stages = [
        ("experts, producers", load.rows, producers, config.n_routed_experts,
         config.num_experts_per_tok),
        ("experts, consumers", load.consumer_rows, consumers, config.n_routed_experts,
         config.num_experts_per_tok),
    ]  # fmt: skip
    if config.draft is not None:
        draft = config.draft
        stages.append(
            ("experts, draft", load.draft_rows, draft.layers, draft.experts,
             draft.experts_per_token)
        )  # fmt: skip
    result = []
    group = load.layout.expert_parallel
    for name, rows, layers, experts, choices in stages:
        result += exchange(
            name,
            form,
            group,
            layers,
            rows=rows,
            choices=choices,
            most_to_one=load.places(experts).per_rank,
            row_bytes=expert_row_bytes(config),
            choice_bytes=_PAIR_BYTES,
            back_bytes=config.hidden_size * (sum_bytes if form == "gather" else _BF16),
        )
    return result


def _engram_exchange(config: ModelConfig, load: Load, form: str) -> list[Collective]:
    """Ids to who has the rows, rows back; without ragged exchanges everybody hears who asks for
    what, and answers with rows of its part, or with nothing."""
    engram, group = config.engram, load.layout.devices
    if engram is None or group == 1:
        return []
    row = engram.head_dim + engram.head_dim // QUANTISATION_BLOCK  # e4m3 codes and scales
    layers = len(engram.layer_ids)
    if form == "ragged":
        return exchange(
            "n-gram rows", form, group, layers, rows=load.rows, choices=engram.columns,
            most_to_one=engram.columns, row_bytes=0, choice_bytes=_PAIR_BYTES, back_bytes=row,
        )  # fmt: skip
    asked = group * load.rows * engram.columns
    return [
        Collective("n-gram rows: asked", "all-gather", group, asked * _INT32, layers),
        Collective("n-gram rows: answers", "all-to-all", group, asked * row, layers),
    ]


def _context_group(config: ModelConfig, load: Load, sum_bytes: int) -> list[Collective]:
    """What the ranks of a context group tell each other (engine.md 8)."""
    group = load.layout.context_parallel
    if group == 1:
        return []
    rank_rows, rank_kept = load.rows * group, load.consumer_rows * group
    producers = config.first_consumer_layer
    consumers = config.num_hidden_layers - producers
    key = config.head_dim + config.head_dim // QUANTISATION_BLOCK  # e4m3 codes and scales
    pairs, singles = len(config.kv_sources(2)), len(config.kv_sources(1))
    stages = config.draft.layers if config.draft else 0
    trunk = config.hc_mult * (config.hidden_size * sum_bytes + _F32)  # streams, pending pre mix
    gathers = [
        ("window keys, producers", "all-gather", rank_rows * key, producers),
        ("window keys, consumers", "all-gather", rank_kept * key, consumers),
        ("draft keys", "all-gather", rank_kept * key, stages),
        ("gates and values of pairs", "all-gather", rank_rows * 2 * config.head_dim * _F32, pairs),
        ("latents of single keys", "all-gather", rank_rows * config.head_dim * _BF16, singles),
        ("rows with logits", "all-reduce", load.outputs * trunk, 1),
    ]
    if load.compacts:  # with token id and image mark
        gathers.append(("kept rows", "all-reduce", rank_kept * (trunk + 2 * _INT32), 1))
    return [
        Collective(name, operation, group, buffer, calls)
        for name, operation, buffer, calls in gathers
        if calls
    ]
