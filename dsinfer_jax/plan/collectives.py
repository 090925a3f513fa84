"""Bytes that cross links in a step, from the shapes alone (engine.md 7.2, 8; design.md 2).

Every collective is counted by its *buffer*: the larger of its operand and its result on one device,
which is what a compiled program shows. In a group of n devices, (n - 1) / n of it crosses a link;
the rest stays. Four kinds of step traffic exist:

* rows to their experts and back, in every layer;
* rows of the n-gram table to the tokens that look them up, in every engram layer;
* keys of the step's rows to all ranks of a context group (prefill with cp > 1);
* hidden rows whose logits are wanted, to the rank that samples (the same).

The head is on every device, so logits stay where they are. An exchange has three forms:

    ragged   every (row, choice) pair travels to its device: `ragged_all_to_all`
    slots    fixed room for the most pairs a device can send to another: one dense `all_to_all`
    gather   all rows to all devices, and a `reduce_scatter` of results, zero where there are none
"""

from dataclasses import dataclass

from dsinfer_jax.config import QUANTISATION_BLOCK, ModelConfig
from dsinfer_jax.plan.load import Load

FORMS = ("ragged", "slots", "gather")
_PAIR_BYTES = 8  # expert place (int32) and weight (float32) that travel with a row
_MIX_BYTES = 4  # float32 coefficients of hyper-connections
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
        return self.bytes * (self.group - 1) // self.group


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


def collectives(config: ModelConfig, load: Load, form: str) -> list[Collective]:
    """Everything that crosses links in one step.

    Args:
        form: one of FORMS.
    """
    return [
        *_expert_exchanges(config, load, form),
        *_engram_exchanges(config, load, form),
        *_key_gathers(config, load),
    ]


def expert_row_bytes(config: ModelConfig) -> int:
    """A row on its way to an expert: e4m3 codes and a scale byte for every 32."""
    return config.hidden_size + config.hidden_size // QUANTISATION_BLOCK


def _expert_exchanges(config: ModelConfig, load: Load, form: str) -> list[Collective]:
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
            back_bytes=config.hidden_size * _BF16,
        )
    return result


def _engram_exchanges(config: ModelConfig, load: Load, form: str) -> list[Collective]:
    engram = config.engram
    if engram is None:
        return []
    return exchange(
        "n-gram rows",
        form,
        load.layout.devices,
        len(engram.layer_ids),
        rows=load.rows,
        choices=engram.columns,
        most_to_one=engram.columns,
        row_bytes=0,
        choice_bytes=_INT32,
        back_bytes=engram.head_dim + engram.head_dim // QUANTISATION_BLOCK,
    )


def _key_gathers(config: ModelConfig, load: Load) -> list[Collective]:
    """What the ranks of a context group tell each other (engine.md 8)."""
    group = load.layout.context_parallel
    if group == 1:
        return []
    rank_rows, rank_kept = load.rows * group, load.consumer_rows * group
    producers = config.first_consumer_layer
    consumers = config.num_hidden_layers - producers
    window = config.head_dim + config.head_dim // QUANTISATION_BLOCK  # e4m3 codes and scales
    pairs, singles = len(config.kv_sources(2)), len(config.kv_sources(1))
    stages = config.draft.layers if config.draft else 0
    hidden = config.hidden_size
    gathers = [
        ("window keys, producers", rank_rows * window, producers),
        ("window keys, consumers", rank_kept * window, consumers),
        ("draft keys", rank_kept * window, stages),
        ("gates and values of pairs", rank_rows * 2 * config.head_dim * _F32, pairs),
        ("latents of single keys", rank_rows * config.head_dim * _BF16, singles),
        ("last hidden rows", group * load.outputs * hidden * _BF16, 1),
    ]
    if load.consumer_rows != load.rows:
        # kept rows may all come from one rank: each leaves room for all of them
        streams = (config.hc_mult + 1) * hidden * _BF16
        mixes = config.mixes * _MIX_BYTES
        gathers.append(("kept rows", group * rank_kept * (streams + mixes), 1))
    return [
        Collective(name, "all-gather", group, buffer, calls)
        for name, buffer, calls in gathers
        if calls
    ]
