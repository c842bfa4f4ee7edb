"""Recordings made for tests: a power on a fine grid, read by a sensor whose response is written out here once more."""

import json
from dataclasses import dataclass, replace

import numpy as np

from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration, calibration_from_document
from estimator.vocabulary.quantities import Array

STEP_S = 2e-4
POLL_S = 0.0061
REST_W = 60.0
LINGER_S = 0.03
LEVEL_W = 140.0


@dataclass(frozen=True)
class Made:
    """A recording with its truth: `energy(from, to)` by the fine grid."""

    time_s: Array
    power_w: Array
    load: LoadStamps
    calibration: SensorCalibration
    grid_s: Array
    true_w: Array

    def energy_j(self, start_s, end_s):
        sums = np.concatenate([[0.0], np.cumsum(self.true_w)]) * STEP_S
        edges = np.append(self.grid_s, self.grid_s[-1] + STEP_S)
        return np.interp(end_s, edges, sums) - np.interp(start_s, edges, sums)


USUAL = """
"gpu_uuid": "GPU-0", "driver": "1", "sensor": "nvml", "field": "instant", "averaging": "boxcar", "n_updates": 100,
"update_period_s": 0.1, "window_s": 0.1, "delay_s": 0.0, "delay_std_s": 2e-4, "gain": 1.0, "gain_std": 0.0, "offset_w": 0.0,
"offset_std_w": 0.0, "reading_noise_w": 0.3
"""


def sensor_of(fields):
    """A sensor from the fields of its file."""
    return calibration_from_document(json.loads(f"{{{fields}}}"))


def a_sensor(**changes):
    """A sensor that shows the mean of the last 0.1 s every 0.1 s, but for some changes."""
    return replace(sensor_of(USUAL), **changes)


def shape_of(place):
    """Power over an execution, as a share of its level: three plateaus."""
    return np.where(place < 0.35, 1.15, np.where(place < 0.6, 0.8, 1.0))


def made(
    averaging,
    width_s,
    period_s,
    starts_s,
    length_s,
    *,
    seed=0,
    noise_w=0.3,
    gain=0.955,
    offset_w=-1.5,
    delay_s=2e-3,
    after_s=1.5,
    linger_share=0.0,
):
    """Executions of `length_s` at `starts_s`, read every `period_s`.

    `linger_share` of their power rises and falls late.
    """
    random = np.random.default_rng(seed)
    end = float(starts_s[-1] + length_s)
    grid = np.arange(0.0, end + after_s, STEP_S)
    index = np.searchsorted(starts_s, grid, side="right") - 1
    place = (grid - starts_s[np.maximum(index, 0)]) / length_s
    on = (index >= 0) & (place < 1.0)
    silicon = np.where(on, LEVEL_W * shape_of(place), 0.0)
    power = REST_W + _pole(silicon, 1e-3) + random.normal(0.0, 1.0, len(grid))
    if linger_share:
        power += linger_share * (_pole(silicon, LINGER_S) - _pole(silicon, 1e-3))
    update = random.uniform(0.0, period_s) + period_s * np.arange(int((end + after_s) / period_s) + 2)
    update += random.normal(0.0, 2e-4, len(update))
    update = update[update < grid[-1]]
    value = np.round(
        gain * _seen(averaging, width_s, grid, power, update - delay_s) + offset_w + random.normal(0.0, noise_w, len(update)), 2
    )
    poll = np.cumsum(random.uniform(0.9, 1.2, int((end + after_s) / POLL_S)) * POLL_S)
    poll = poll[(poll > update[0]) & (poll < grid[-1])]
    calibration = a_sensor(
        averaging=averaging, update_period_s=period_s, update_jitter_s=3e-4, window_s=width_s, window_std_s=2e-4, delay_s=delay_s,
        gain=gain, offset_w=offset_w, reading_noise_w=noise_w,
    )  # fmt: skip
    return Made(
        time_s=poll,
        power_w=value[np.searchsorted(update, poll, side="right") - 1],
        load=LoadStamps(start_s=starts_s, end_s=starts_s + length_s),
        calibration=calibration,
        grid_s=grid,
        true_w=power,
    )


def _pole(x, tau_s):
    """First-order low-pass from rest."""
    keep = float(np.exp(-STEP_S / tau_s))
    kernel = (1.0 - keep) * keep ** np.arange(int(12.0 * tau_s / STEP_S))
    return np.convolve(x, kernel)[: len(x)]


def _seen(averaging, width_s, grid, power, until_s):
    if averaging == "low-pass":
        seen = REST_W + _pole(power - REST_W, 0.5 * width_s)
        return np.interp(until_s, grid + STEP_S, seen)
    sums = np.concatenate([[0.0], np.cumsum(power)]) * STEP_S
    edges = np.append(grid, grid[-1] + STEP_S)
    before = np.minimum(until_s - width_s, 0.0) * REST_W
    return (np.interp(until_s, edges, sums) - np.interp(until_s - width_s, edges, sums) - before) / width_s
