"""Characterising a board with loads of its own: what is run next, when it stops."""

import numpy as np
import pytest

from collector.sensing.decision import informative_ratio
from collector.sensing.regression import Fit

PERIOD_S = 0.1


def fit(kernel, width_s):
    step = np.array([60.0, 190.0])
    return Fit(
        kernel=kernel, width_s=width_s, delay_s=0.0, score=0.0, each=step, level=step, level_std=step, residual=step,
        predicted=step, noise_w=0.4, jitter_s=4e-4, explained=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "width_s", "good", "blind"),
    [
        ("boxcar", 0.010, (0.57, 2.3), 7.37),
        ("boxcar", 0.100, (1.2, 12.3), 0.91),
        ("low-pass", 0.025, (0.57, 4.7), 12.3),
        ("low-pass", 0.680, (4.7, 12.3), 0.91),
    ],
)
def test_the_next_load_is_one_that_tells_the_kernels_apart(kernel, width_s, good, blind):
    """The informative periods of sensor-method.md 3: short ones for short windows, long ones for long windows."""
    chosen = informative_ratio(fit(kernel, width_s), PERIOD_S)
    assert good[0] <= chosen <= good[1]
    assert chosen != blind


def test_a_meter_makes_the_gain_sure(calibration):
    assert calibration.gain_std < 0.004
