"""The simulator of expert balancing: traces, recordings, and the comparison of policies."""

import sys
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import expert_traces
import sim_eplb
from expert_traces import TraceError, Traffic

from dsinfer_jax.mesh.expert_balance import BalanceSettings

TRAFFIC = Traffic(rows=200, requests=10, lifetime=20, drift=500)
SETTINGS = BalanceSettings(redundant_per_rank=2, window=20, interval=200)


def test_synthetic_loads_are_skewed_drift_and_repeat() -> None:
    make = partial(expert_traces.synthetic, TRAFFIC, 8, 2, 32, 4, 1.0)
    trace = np.stack(list(islice(make(seed=1), 400)))
    assert trace.shape == (400, 2, 32)
    assert (trace.sum(axis=2) == 200 * 8 * 4).all()
    first, last = (trace[part].mean(axis=0) for part in (slice(50), slice(-50, None)))
    assert first.max() > 3 * first.mean()
    assert np.abs(np.log(last / first)).mean() > 0.1
    assert np.array_equal(trace[:5], np.stack(list(islice(make(seed=1), 5))))
    assert not np.array_equal(trace[:5], np.stack(list(islice(make(seed=2), 5))))


def test_ours_is_better_than_the_reference_on_a_drifting_trace() -> None:
    endless = partial(expert_traces.synthetic, TRAFFIC, 8, 1, 32, 4, 1.0, 3)
    trace = partial(sim_eplb.shortened, endless, 450)
    scenario = sim_eplb.Scenario("small", trace, 1, 32, 8, SETTINGS, seed=0)
    line, good = sim_eplb.row(scenario)
    assert good and line.startswith("small")
    unbalanced, reference, ours = (float(word) for word in line.split()[2:5])
    assert 1 < ours < reference < unbalanced


def test_recorded_counts_are_replayed(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (3, 2, 8))
    np.savez(tmp_path / "trace.npz", counts=counts)
    recording = expert_traces.read_recording(tmp_path / "trace.npz")
    assert (recording.layers, recording.experts) == (2, 8)
    replayed = list(islice(expert_traces.replay(recording, TRAFFIC, 4, seed=0), 7))
    assert np.array_equal(replayed, counts[[0, 1, 2, 0, 1, 2, 0]])


def test_recorded_choices_fill_steps_of_any_size(tmp_path: Path) -> None:
    """Requests walk through sequences: 10 on each of 4 ranks, 20 rows of each in a step."""
    random = np.random.default_rng(0)
    lengths = np.array([40, 3, 57])
    choices = random.integers(0, 8, (100, 2, 2)).astype(np.uint16)
    choices[:40, :, :] = 5  # the first sequence knows one expert
    np.savez(tmp_path / "trace.npz", choices=choices, lengths=lengths, experts=8)
    recording = expert_traces.read_recording(tmp_path / "trace.npz")
    steps = np.stack(list(islice(expert_traces.replay(recording, TRAFFIC, 4, seed=0), 300)))
    assert steps.shape == (300, 2, 8)
    assert (steps.sum(axis=2) == 4 * 10 * 20 * 2).all()
    assert 0.2 < steps[:, 0, 5].sum() / steps[:, 0].sum() < 0.6


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"counts": np.zeros((2, 3))}, r"counts of .* is float64\[2, 3\]; it must hold"),
        ({"choices": np.zeros((2, 1, 1), int)}, "lacks lengths, experts"),
        (
            {"choices": np.zeros((2, 1, 1), int), "lengths": np.array([3]), "experts": 4},
            r"choices \[2, 1, 1\] and lengths that sum to 3",
        ),
        (
            {"choices": np.full((2, 1, 1), 4), "lengths": np.array([2]), "experts": 4},
            "choices outside 0 to 3",
        ),
    ],
)
def test_wrong_recordings_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], sentence: str
) -> None:
    np.savez(tmp_path / "trace.npz", **arrays)
    with pytest.raises(TraceError, match=sentence):
        expert_traces.read_recording(tmp_path / "trace.npz")


def test_a_missing_recording_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sim_eplb.py", "--trace", "/nowhere.npz"])
    assert sim_eplb.main() == 2
    assert "sim_eplb: /nowhere.npz cannot be read" in capsys.readouterr().err
