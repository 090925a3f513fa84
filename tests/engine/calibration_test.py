"""Calibration of confidences: invented blocks whose true rates are known."""

import numpy as np
import pytest

from dsinfer_jax.engine.calibration import (
    calibration_error,
    fit_temperatures,
    logits_of,
    sigmoid,
)


def blocks(temperatures: list[float], count: int = 40_000) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a head that is wrong by these temperatures, and drafts accepted by the truth."""
    random = np.random.default_rng(0)
    true_logits = random.normal(1.0, 1.5, (count, len(temperatures)))
    stays = random.random(true_logits.shape) < sigmoid(true_logits)
    accepted = np.cumprod(stays, axis=1).sum(axis=1)
    return true_logits * temperatures, accepted


def test_wrong_temperatures_are_found() -> None:
    wrong = [2.0, 0.5, 1.0, 3.0]
    found = fit_temperatures(*blocks(wrong))
    assert np.allclose(found.temperatures, wrong, rtol=0.15)
    assert max(found.after) < 0.02 < min(found.before[0], found.before[3])
    assert found.blocks == 40_000


def test_right_confidences_stay_as_they_are() -> None:
    found = fit_temperatures(*blocks([1.0] * 5))
    assert np.allclose(found.temperatures, 1, rtol=0.15)


def test_later_places_are_fitted_to_what_survives() -> None:
    """A head that is right about each place alone is right about survival: errors stay small."""
    found = fit_temperatures(*blocks([1.0] * 8))
    assert max(found.before) < 0.02


def test_calibration_error_of_known_numbers() -> None:
    rates = np.array([0.1, 0.1, 0.9, 0.9])
    assert calibration_error(rates, np.array([0, 0, 1, 1])) == pytest.approx(0.1)
    assert calibration_error(rates, np.array([0, 0, 0, 0])) == pytest.approx(0.5)


def test_logits_and_confidences_are_inverse() -> None:
    logits = np.array([-9.0, -1.5, 0.0, 1.2, 9.0])
    confidences = sigmoid(logits).astype(np.float32)
    assert np.allclose(logits_of(confidences), logits, atol=1e-2)
    assert np.isfinite(logits_of(np.array([0.0, 1.0], np.float32))).all()
    assert sigmoid(np.array([1.5 / 1.25])) == pytest.approx(0.76852, abs=1e-5)


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="no blocks"):
        fit_temperatures(np.zeros((0, 3)), np.zeros(0, int))
