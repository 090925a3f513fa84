"""What people look at: the loss curve of a run, the table and plot of an evaluation."""

from collections.abc import Mapping
from pathlib import Path

from demo_training.evaluate import Tally
from demo_training.train import read_log


def write_plot(folder: Path) -> None:
    """`loss.svg`: loss of answers, the indexers' loss and what they find, by step."""
    from matplotlib.figure import Figure

    entries = list(read_log(folder))
    figure = Figure(figsize=(8, 5), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=[2, 1])
    for long, name in ((False, "short rows"), (True, "long rows")):
        some = [entry for entry in entries if entry["long"] == long]
        upper.plot([entry["step"] for entry in some], [entry["loss"] for entry in some], label=name)
    upper.set_ylabel("loss of answers, nats per token")
    upper.set_yscale("log")
    upper.legend()
    steps = [entry["step"] for entry in entries]
    lower.plot(steps, [entry["recall"] for entry in entries], label="attention on chosen keys")
    lower.plot(steps, [entry["least_load"] for entry in entries], label="least used expert")
    lower.set_xlabel("step")
    lower.legend()
    figure.savefig(folder / "loss.svg")


def write_draft_plot(folder: Path) -> None:
    """`loss.svg`: accepted length, overlap of laws and error of the confidences, by step."""
    from matplotlib.figure import Figure

    entries = list(read_log(folder))
    figure = Figure(figsize=(8, 5), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    steps = [entry["step"] for entry in entries]
    upper.plot(steps, [entry["accepted_length"] for entry in entries])
    upper.set_ylabel("accepted length, greedy")
    for name in ("overlap", "confidence_error", "least_load"):
        lower.plot(steps, [entry[name] for entry in entries], label=name.replace("_", " "))
    lower.set_xlabel("step")
    lower.legend()
    figure.savefig(folder / "loss.svg")


def table_line(name: str, tallies: Mapping[str, Tally]) -> str:
    """One variant: right and well formed of each task, in percent."""
    cells = (
        f"{task} {100 * tally.right / tally.items:.0f}/{100 * tally.valid / tally.items:.0f}"
        for task, tally in tallies.items()
    )
    return f"{name:26} " + "  ".join(cells)


def plot_table(table: Mapping[str, Mapping[str, Mapping[str, int]]], path: Path) -> None:
    """Right answers by task, a group of bars for each task and a bar for each variant."""
    from matplotlib.figure import Figure

    tasks = list(next(iter(table.values())))
    figure = Figure(figsize=(1 + len(tasks), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(table)
    for place, (variant, by_task) in enumerate(table.items()):
        some = [(at, by_task[task]) for at, task in enumerate(tasks) if task in by_task]
        shares = [tally["right"] / tally["items"] for _, tally in some]
        axes.bar([at + place * width for at, _ in some], shares, width, label=variant)
    axes.set_xticks([at + 0.4 for at in range(len(tasks))], tasks, rotation=30, ha="right")
    axes.set_ylabel("right answers")
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path)
