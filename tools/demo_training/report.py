"""The loss curve of a run."""

from pathlib import Path

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
