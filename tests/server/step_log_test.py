"""Steps read off growing counts."""

from __future__ import annotations

from dsinfer_jax.server.step_log import INTERVAL, KEPT, StepLog


def counts(**values: tuple[float, float, float]) -> dict[str, float]:
    """The counts of kinds of steps: how many, their tokens, their seconds."""
    names = ("steps", "step_tokens", "step_seconds")
    return {
        f'dsinfer_{name}_total{{kind="{kind}"}}': value
        for kind, numbers in values.items()
        for name, value in zip(names, numbers)
    }


def test_records_are_what_counts_grew_by() -> None:
    log = StepLog(dict)
    log.add(counts(prefill=(1, 200, 0.5), decode=(0, 0, 0)))
    log.add(counts(prefill=(1, 200, 0.5), decode=(4, 6, 1.0)))
    log.add(counts(prefill=(1, 200, 0.5), decode=(4, 6, 1.0)))
    log.add(counts(prefill=(3, 300, 1.5), decode=(5, 14, 1.5)))
    assert log.records() == [
        {"kind": "prefill", "steps": 1, "tokens": 200, "seconds": 0.5},
        {"kind": "decode", "steps": 4, "tokens": 1.5, "seconds": 0.25},
        {"kind": "prefill", "steps": 2, "tokens": 50, "seconds": 0.5},
        {"kind": "decode", "steps": 1, "tokens": 8, "seconds": 0.5},
    ]


def test_only_the_last_ones_are_kept() -> None:
    log = StepLog(dict)
    for step in range(1, 2 * KEPT):
        log.add(counts(decode=(step, step, step)))
    assert len(log.records()) == KEPT


def test_looks_are_not_too_frequent() -> None:
    now, looks = 10.0, []

    def look() -> dict[str, float]:
        looks.append(now)
        return {}

    log = StepLog(look, lambda: now)
    for _ in range(100):
        log.look()
        now += INTERVAL / 9.5
    assert len(looks) == 1 + 10  # one at the start


def test_steps_before_the_start_are_none() -> None:
    log = StepLog(lambda: counts(decode=(100, 200, 3.0)))
    log.look()
    assert log.records() == []
    log.add(counts(decode=(101, 208, 3.5)))
    assert log.records() == [{"kind": "decode", "steps": 1, "tokens": 8, "seconds": 0.5}]
