"""When the power of an execution begins and ends after its stamps is found from readings, not taken for granted."""

import numpy as np
import pytest

from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.repeated import repeated_energy
from collector.sensing.updates import BoardUpdates

PERIOD_S, WINDOW_S, NOISE_W, REST_W, STEP_W = 0.1, 0.05, 0.3, 70.0, 180.0


def exact(length_s, pause_s, late_s, seed):
    """What is found for executions whose power steps `late_s` after their stamps; their true energy, and that of the load [J]."""
    random = np.random.default_rng(seed)
    lengths, pauses = length_s * random.uniform(0.98, 1.02, 400), pause_s * random.uniform(0.96, 1.04, 400)
    starts = 1.0 + np.cumsum(lengths + pauses) - lengths
    count = int(np.searchsorted(starts, 18.0))
    starts, ends = starts[:count], starts[:count] + lengths[:count]

    def on_s(time_s):
        return np.clip(time_s[:, None] - starts - late_s, 0.0, ends - starts - late_s).sum(axis=1)

    update = np.arange(0.113, 20.0, PERIOD_S)
    value = REST_W + STEP_W * (on_s(update) - on_s(update - WINDOW_S)) / WINDOW_S + random.normal(0.0, NOISE_W, len(update))
    calibration = SensorCalibration(
        gpu_uuid="", driver="", sensor="log", field="power_w", averaging="boxcar", n_updates=200, update_period_s=PERIOD_S,
        update_jitter_s=2e-5, window_s=WINDOW_S, window_std_s=5e-5, delay_s=0.0, delay_std_s=5e-5, gain=1.0, gain_std=0.0, offset_w=0.0,
        offset_std_w=0.0, reading_noise_w=NOISE_W,
    )  # fmt: skip
    updates = BoardUpdates(time_s=update, value=value, period_s=PERIOD_S, time_std_s=2e-5, note="")
    found = repeated_energy((update, value), updates, LoadStamps(start_s=starts, end_s=ends), calibration)
    drawn = STEP_W * (ends - starts - late_s)
    return found, float(np.mean(REST_W * (ends - starts) + drawn)), float(REST_W * (ends[-1] - starts[0]) + drawn.sum())


@pytest.mark.parametrize("late_s", [0.0, 3e-4, 1e-3])
@pytest.mark.parametrize(("length_s", "pause_s"), [(0.058, 0.069), (0.3, 0.25), (0.01, 0.037)])
def test_the_energy_of_an_execution_is_true_however_soon_its_power_begins(length_s, pause_s, late_s):
    for seed in (1, 2):
        found, energy_j, total_j = exact(length_s, pause_s, late_s, seed)
        assert abs(found.energy_j - energy_j) < 3.0 * found.energy_std_j
        assert abs(found.energy_j - energy_j) < 5e-4 * STEP_W, "half a millisecond of the step"
        assert abs(found.total.energy_j - total_j) < 3.0 * found.total.energy_std_j
