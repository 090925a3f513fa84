"""The model card: what the demo model is, how it was made, and how good it is."""

from collections.abc import Mapping, Sequence
from typing import Any

from dsinfer_jax.config import ModelConfig

_HEAD = """# The demo model

A small model of the published architecture, trained from nothing on conversations that this project
generates: greetings, arithmetic with two digits, copying, looking things up in texts of up to 2 000
tokens, dates and units, calls of five tools, JSON; some of it in Chinese. How well it does each is
under Evaluation, on wordings and contents that training never showed. It knows nothing else, and is
here so that examples, tests and measurements have weights that learned something. Licence: that of
the project. `docs/demo_model.md` says what the tasks are.

"""


def card(
    config: ModelConfig, parameters: int, size: int, training: Mapping[str, Any],
    evaluation: Mapping[str, Any],
) -> str:  # fmt: skip
    """The card as Markdown.

    Args:
        size: of the weights, bytes.
        training: as `train_demo.py` writes it.
        evaluation: as `eval_demo.py` writes it.
    """
    return _HEAD + "\n".join([
        "## Sizes", "", *_sizes(config, parameters, size),
        "", "## Training", "", *_training(training),
        "", "## Evaluation", "", *_evaluation(evaluation),
    ]) + "\n"  # fmt: skip


def _sizes(config: ModelConfig, parameters: int, size: int) -> list[str]:
    draft = f", {config.draft.layers} draft stages" if config.draft else ""
    return [
        f"{parameters / 1e6:.2f} million parameters in {size / 1e6:.1f} MB: "
        f"{config.num_hidden_layers} layers of width {config.hidden_size}, "
        f"{config.n_routed_experts} experts of which {config.num_experts_per_tok} are taken, "
        f"a window of {config.sliding_window}, {config.index_topk} chosen keys, n-gram memory in "
        f"{len(config.engram.layer_ids) if config.engram else 0} layers{draft}, "
        f"{config.vocab_size} tokens.",
    ]


def _training(training: Mapping[str, Any]) -> list[str]:
    hours, minutes = divmod(round(training["seconds"] / 60), 60)
    return [
        f"* command: `{training['command']}`",
        f"* seed: {training['seed']}",
        f"* data: {training['data']} (SHA-256, `data_hash`)",
        f"* time: {hours} h {minutes} min on {training['cores']} CPU cores",
        *([f"* of this model: {training['remark']}"] if "remark" in training else []),
    ]


def _evaluation(evaluation: Mapping[str, Any]) -> list[str]:
    table = evaluation["table"]
    tasks = list(table["runtime"])
    lines = [
        *(f"    {command}" for command in evaluation["commands"]), "",
        "Held-out items, greedy. Right / well formed, in percent.", "",
        "| variant | " + " | ".join(tasks) + " |",
        "|---|" + "---|" * len(tasks),
    ]  # fmt: skip
    for name, tallies in table.items():
        cells = (_cell(tallies.get(task)) for task in tasks)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if "dspark" in table:
        lines += ["", *_lengths(table["dspark"], evaluation["accepted"]["dspark"])]
    perplexity = (f"{name} {value:.4f}" for name, value in evaluation["perplexity"].items())
    shares = [share for layer in evaluation["expert_shares"] for share in layer]
    lines += [
        "", f"Perplexity of what assistants say: {', '.join(perplexity)}.",
        f"Experts get {min(shares):.2f} to {max(shares):.2f} times their share of the rows.",
    ]  # fmt: skip
    return lines


def _cell(tally: Mapping[str, int] | None) -> str:
    if tally is None:
        return ""
    return f"{percent(tally['right'], tally)} / {percent(tally['valid'], tally)}"


def percent(count: int, tally: Mapping[str, int]) -> str:
    """A count of items of a tally."""
    return f"{100 * count / tally['items']:.0f}"


def _lengths(tallies: Mapping[str, Mapping[str, int]], accepted: Sequence[float]) -> Sequence[str]:
    lengths = {task: tally["tokens"] / max(tally["steps"], 1) for task, tally in tallies.items()}
    tokens = sum(tally["tokens"] for tally in tallies.values())
    steps = sum(tally["steps"] for tally in tallies.values())
    by_task = ", ".join(f"{task} {length:.2f}" for task, length in lengths.items())
    return [
        f"With the draft block a step gives {tokens / steps:.2f} tokens on average (the token that "
        f"every step gives included): {by_task}. Drafts that stay, by place: "
        f"{', '.join(f'{share:.0%}' for share in accepted)}.",
    ]
