"""Test whether `collect correct` distinguishes a wrong calibration from the right one.  All figures are simulated.

    python benchmarks/stated_sensors.py [--boards 40] [--first 0] [--stated right,x0.8,x1.25,kind,later]

Boards draw power on a grid of 0.1 ms, with their own noise, levels within executions and, one in four, a delayed part; a sensor of a
random class reads them.  `stated` is the given calibration: the right one within its errors, one with a wrong width, with the other
response, or later or earlier by 4 ms.  For each the output is the number of failed model checks (a warning), and, for the others, the
number of execution energies within one and two stated errors.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import click
import numpy as np
from scipy.signal import lfilter
from showing import show

from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.correct import correct_recording
from estimator.vocabulary.quantities import Array

STEP_S: Final = 1e-4
REST_W: Final = 80.0
CLASSES: Final = (
    ("boxcar", 0.1, 0.1), ("boxcar", 0.1, 0.05), ("boxcar", 0.1, 0.025), ("boxcar", 0.0667, 0.0667), ("boxcar", 0.02004, 0.01),
    ("low-pass", 0.1012, 0.025), ("low-pass", 0.1, 0.06), ("low-pass", 0.05, 0.05), ("low-pass", 0.02004, 0.03),
    ("low-pass", 0.01541, 0.106),
)  # fmt: skip
"""Response, update period and width (W or 2τ) [s]."""
GAIN, OFFSET_W = 0.95, -2.0
UPDATE_JITTER_S: Final = 3e-4
DELAY_STD_S: Final = 2e-4
OFF_S: Final = 4e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Polls, the load, the right calibration, and the true mean energy of an execution [J]."""

    time_s: Array
    power_w: Array
    load: LoadStamps
    calibration: SensorCalibration
    energy_j: float


def low_pass(power_w: Array, tau_s: float) -> Array:
    """First-order low-pass on the grid, from rest."""
    keep = float(np.exp(-STEP_S / tau_s))
    filtered: Array = lfilter([1.0 - keep], [1.0, -keep], power_w, zi=[keep * power_w[0]])[0]
    return filtered


def executions(random: np.random.Generator) -> LoadStamps:
    """Executions of 20 to 600 ms, for 5 to 15 s: a square wave, with short pauses, or back to back."""
    length_s = float(np.exp(random.uniform(np.log(0.02), np.log(0.6))))
    pause_s = length_s * float(random.choice([random.uniform(0.7, 1.3), random.uniform(0.05, 0.5), 0.0], p=[0.45, 0.4, 0.15]))
    count = max(int(random.uniform(5.0, 15.0) / (length_s + pause_s + 1e-3)), 6)
    cycle_s = length_s * (1.0 + 0.002 * random.standard_normal(count)) + pause_s * (1.0 + random.uniform(-0.1, 0.1, count)) + 1e-3
    start_s = 2.0 + np.concatenate([[0.0], np.cumsum(cycle_s[:-1])])
    return LoadStamps(start_s=start_s, end_s=start_s + length_s)


def board_power(load: LoadStamps, random: np.random.Generator) -> Array:
    """Power from time 0 to 4 s after the last execution [W]: up to six levels an execution, launch lag, rise, delayed part, noise."""
    power_w = np.full(int((load.end_s[-1] + 4.0) / STEP_S), REST_W)
    parts = int(random.choice([1, 1, 2, 4, 6]))
    corner, level_w = np.sort(random.uniform(0.08, 0.92, parts - 1)), random.uniform(140.0, 310.0, parts)
    spread, lag_s = float(random.choice([0.0, 0.003])), random.uniform(2e-4, 4.5e-4)
    for start_s, end_s in zip(load.start_s, load.end_s, strict=True):
        first, last = round((start_s + lag_s) / STEP_S), round(end_s / STEP_S)
        place = (np.arange(last - first) + 0.5) / (last - first)
        power_w[first:last] = level_w[np.searchsorted(corner, place)] * (1.0 + spread * random.standard_normal())
    prompt = low_pass(power_w, random.uniform(3e-4, 1.1e-3))
    share, late_s = random.uniform(0.05, 0.3), float(np.exp(random.uniform(np.log(5e-3), np.log(0.06))))
    if random.random() < 0.25:
        prompt = (1.0 - share) * prompt + share * low_pass(power_w, late_s)
    keep = float(np.exp(-STEP_S / np.exp(random.uniform(np.log(3e-3), np.log(0.1)))))
    noise: Array = lfilter([np.sqrt(1.0 - keep**2)], [1.0, -keep], random.standard_normal(len(power_w))) * random.uniform(0.3, 2.0)
    return prompt + noise


def recorded(random: np.random.Generator) -> Recorded:
    """A recording by a sensor of a random class."""
    kernel, period_s, width_s = CLASSES[int(random.integers(len(CLASSES)))]
    load = executions(random)
    power_w = board_power(load, random)
    edge_s, sums_j = np.arange(len(power_w) + 1) * STEP_S, np.concatenate([[0.0], np.cumsum(power_w)]) * STEP_S
    end_s = float(edge_s[-1]) - 2.0
    update_s = random.uniform(0.0, period_s) + period_s * np.arange(1, int((end_s + 1.0) / period_s))
    update_s += UPDATE_JITTER_S * random.standard_normal(len(update_s))
    if kernel == "boxcar":
        seen = (np.interp(update_s, edge_s, sums_j) - np.interp(update_s - width_s, edge_s, sums_j)) / width_s
    else:
        seen = np.interp(update_s, edge_s[1:], low_pass(power_w, 0.5 * width_s))
    noise_w, delay_s = float(random.choice([0.1, 0.3, 0.6])), float(random.uniform(-4e-3, 4e-3))
    value = np.round(GAIN * seen + OFFSET_W + noise_w * random.standard_normal(len(seen)), 2)
    poll_s = min(float(random.choice([2e-3, 5e-3, 0.01])), period_s / 3.0)
    time_s = 1.0 + np.cumsum(poll_s * (1.0 + 0.1 * np.abs(random.standard_normal(int(end_s / poll_s)))))
    time_s = time_s[time_s < end_s]
    shown = np.maximum(np.searchsorted(update_s + delay_s, time_s, side="right") - 1, 0)
    width_std_s = float(random.choice([1e-4, 3e-4]))
    calibration = SensorCalibration(
        gpu_uuid="", driver="", sensor="simulated", field="instant", averaging=kernel, n_updates=300, update_period_s=period_s,
        update_period_std_s=1e-5, update_jitter_s=UPDATE_JITTER_S, window_s=width_s + width_std_s * random.standard_normal(),
        window_std_s=width_std_s, delay_s=delay_s + DELAY_STD_S * random.standard_normal(), delay_std_s=DELAY_STD_S, gain=GAIN,
        gain_std=5e-4, offset_w=OFFSET_W, offset_std_w=0.1, residual_w=float(random.choice([0.3, 0.6, 1.5])), reading_noise_w=noise_w,
    )  # fmt: skip
    true_j = float(np.mean(np.interp(load.end_s, edge_s, sums_j) - np.interp(load.start_s, edge_s, sums_j)))
    origin_s = float(time_s[0])
    return Recorded(
        time_s=time_s - origin_s, power_w=value[shown], load=load.moved(-origin_s), calibration=calibration, energy_j=true_j
    )  # fmt: skip


def _wider(share: float) -> Callable[[SensorCalibration], SensorCalibration]:
    return lambda right: replace(right, window_s=share * (right.window_s or 0.0))


def _later(by_s: float) -> Callable[[SensorCalibration], SensorCalibration]:
    return lambda right: replace(right, delay_s=(right.delay_s or 0.0) + by_s)


STATED: Final[dict[str, Callable[[SensorCalibration], SensorCalibration]]] = {
    "right": lambda right: right,
    **{f"x{share:g}": _wider(share) for share in (0.6, 0.8, 1.25, 1.6)},
    "kind": lambda right: replace(right, averaging="low-pass" if right.averaging == "boxcar" else "boxcar"),
    "later": _later(OFF_S),
    "earlier": _later(-OFF_S),
}


@click.command()
@click.option("--boards", default=40, show_default=True)
@click.option("--first", default=0, show_default=True, help="Seed of the first board.")
@click.option("--stated", default=",".join(STATED), show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(boards: int, first: int, stated: str, as_json: bool) -> None:
    """Print the table."""
    show((judged(name, range(first, first + boards)) for name in stated.split(",")), as_json)


def judged(name: str, seeds: range) -> dict[str, object]:
    """Number of boards with a failed model check, and the number of other energies within one and two stated errors."""
    warned, away = 0, []
    for seed in seeds:
        case = recorded(np.random.default_rng(seed))
        found = correct_recording(case.time_s, case.power_w, STATED[name](case.calibration), case.load)
        if found.repeated is None:
            continue
        if "sensor" in found.notes:
            warned += 1
        else:
            away.append(abs(found.repeated.energy_j - case.energy_j) / found.repeated.energy_std_j)
    within = {f"within {reach}": float(np.mean(np.array(away) <= reach)) if away else float("nan") for reach in (1, 2)}
    return {"stated": name, "warned": warned, "not warned": len(away), **within}


if __name__ == "__main__":
    main()
