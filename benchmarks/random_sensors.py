"""Random power sensors and their polls, meter data and load logs: simulated, after published observations.

Power is generated on a 0.2 ms grid (board rise, creep, tail, ripple), averaged by direct summation or recursion, and read through
an update clock with jitter, wander and skipped updates by a polling host.  This code is independent of the identification.
"""

from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from estimator.vocabulary.quantities import Array

GRID_S = 2e-4
LEAD_S = 1.5
"""Time of known power before the first poll, so that the longest window is filled."""
PERIODS_S = (0.01541, 0.02004, 0.031, 0.09997, 0.1012)
LOAD_RATIOS = (0.6, 0.75, 0.9, 1.1, 1.27, 1.6, 2.3, 3.1, 5.3)
POLLS_S = (0.001, 0.002, 0.005, 0.007, 0.008, 0.013)
LATE_FORMS = ("two poles", "one pole", "after 100 ms")
"""Forms of the delayed part of power; on two boards a quarter to two fifths of the step came between 100 and 200 ms after a launch."""
TRAILING_SLOTS = 11
TRAILING_WEIGHT = 0.0905


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedSensor:
    """The truth: response, width (boxcar W, low-pass 2τ, span of a trailing mean) and update period [s], gain, offset [W], delay [s].

    `rigid`: whether updates keep to a grid; `load_period_s`: the load's period (infinite for a single step); `noise_w`: the
    noise of a reading; `step_w`: the load's step; `jitter_s`: the jitter of updates; `load_spread`: the relative scatter of the load's
    half periods.
    """

    kernel: str
    width_s: float
    period_s: float
    rigid: bool
    gain: float
    offset_w: float
    delay_s: float
    load_period_s: float
    poll_s: float
    noise_w: float
    step_w: float
    jitter_s: float
    load_spread: float = 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Polls, an external meter and the load's edges [s, W], and the planted truth with its update times.

    `mean_period_s` is the period of this recording: the slope of the updates' times over their numbers, without jitter, with slow
    wander.  Poll stamps are `early_s` early, on average.
    """

    planted: PlantedSensor
    mean_period_s: float
    early_s: float
    update_s: Array
    time_s: Array
    reading_w: Array
    meter_s: Array
    meter_w: Array
    edge_s: Array
    level: Array
    power_w: Array


def draw_sensor(random: np.random.Generator) -> PlantedSensor:
    """A sensor drawn as in the published observations."""
    period = float(random.choice(PERIODS_S)) * (1.0 + float(random.uniform(-3e-4, 3e-4)))
    kernel = str(random.choice(["boxcar", "low-pass", "trailing-mean", "none"], p=[0.4, 0.4, 0.1, 0.1]))
    if kernel == "trailing-mean":
        period = float(random.choice(PERIODS_S[3:]))
    width = 0.0
    if kernel == "boxcar":
        width = float(random.choice([0.1, 0.2, 0.25, 0.5, 1.0])) * period * (1.0 + float(random.normal(0, 0.04)))
    elif kernel == "low-pass":
        share = random.uniform(0.08, 0.6) if period > 0.05 or random.random() < 0.7 else random.uniform(1.0, 3.5)
        width = 2.0 * period * float(share)
    elif kernel == "trailing-mean":
        width = TRAILING_SLOTS * period
    ratio = float(random.choice(LOAD_RATIOS))
    return PlantedSensor(
        kernel=kernel,
        width_s=width,
        period_s=period,
        rigid=not (period < 0.03 and random.random() < 0.12),
        gain=float(np.clip(random.normal(1.0, 0.03), 0.87, 1.18)),
        offset_w=float(random.uniform(-25, 16)),
        delay_s=float(random.uniform(-4e-3, 8e-3)),
        load_period_s=float(random.uniform(0.6, 3.0)) if kernel == "trailing-mean" else ratio * period,
        poll_s=float(random.choice(POLLS_S)),
        noise_w=float(random.choice([0.1, 0.3, 1.0])),
        step_w=float(random.uniform(60, 250)),
        jitter_s=float(random.choice([1e-4, 3e-4, 5e-4])),
    )


def record(planted: PlantedSensor, random: np.random.Generator, duration_s: float = 10.0) -> Recording:
    """Recording of polls, meter and load log of a sensor for `duration_s`."""
    edge_s, level = _load(planted.load_period_s, planted.load_spread, duration_s, random)
    time_s = np.arange(-LEAD_S, duration_s, GRID_S)
    power = _board_power(time_s, edge_s, level, planted, random)
    update_s, due_s = _updates(planted, duration_s, random)
    value = planted.gain * _averaged(planted, time_s, power, update_s) + planted.offset_w
    quantum = float(random.choice([0.01, 0.01, 0.09]))
    value = np.round((value + random.normal(0.0, planted.noise_w, len(value))) / quantum) * quantum
    step = planted.poll_s * (1.0 + np.abs(random.normal(0.0, 0.08, int((duration_s + 1.0) / planted.poll_s) + 10)))
    holes = random.random(len(step)) < 0.002
    step[holes] += random.uniform(0.01, 0.08, int(holes.sum()))
    poll_s = np.cumsum(step) - 1.0
    poll_s = poll_s[poll_s < duration_s - 0.02]
    shown = np.searchsorted(update_s + planted.delay_s, poll_s, side="right") - 1
    early = float(random.choice([2e-4, 1e-3, 1e-3])) * random.random(len(poll_s))
    seen = shown >= 0
    polled = due_s[(due_s > poll_s[seen][0]) & (due_s < poll_s[-1])]
    return Recording(
        planted=planted,
        mean_period_s=float(np.polyfit(np.arange(len(polled)), polled, 1)[0]),
        early_s=float(early.mean()),
        update_s=update_s,
        time_s=(poll_s - early)[seen],
        reading_w=value[shown[seen]],
        meter_s=time_s + 0.5 * GRID_S,
        meter_w=power + random.normal(0.0, float(random.uniform(1.5, 3.7)), len(time_s)),
        edge_s=edge_s,
        level=level,
        power_w=power,
    )


def _load(period_s: float, spread: float, duration_s: float, random: np.random.Generator) -> tuple[Array, Array]:
    """Edges and the level after each; a single step for an infinite period."""
    if not np.isfinite(period_s):
        return np.array([3.0, 7.0]), np.array([1.0, 0.0])
    edges = [1.0]
    while edges[-1] < duration_s - 0.5:
        edges.append(edges[-1] + 0.5 * period_s * (1.0 + spread * float(random.normal())))
    edge_s = np.array(edges[: len(edges) // 2 * 2])
    return edge_s, (np.arange(len(edge_s)) + 1.0) % 2


def _board_power(time_s: Array, edge_s: Array, level: Array, planted: PlantedSensor, random: np.random.Generator) -> Array:
    """True power: a load with a rise in one or two parts, creep, a tail and ripple."""
    lagged = edge_s + random.uniform(2e-4, 4.5e-4) + random.normal(0.0, 5e-5, len(edge_s))
    index = np.searchsorted(lagged, time_s, side="right") - 1
    on = np.where(index >= 0, level[np.maximum(index, 0)], 0.0)
    two_parts = random.random() < 1.0 / 3.0
    at_once = float(random.uniform(0.6, 0.8)) if two_parts else 1.0
    fast = _pole(on, 1e-3)
    shape = at_once * fast + (1.0 - at_once) * _late(time_s, lagged, level, on, str(random.choice(LATE_FORMS)))
    creep = float(random.uniform(0.0, 0.06))
    tail = float(random.uniform(0.0, 0.12 if two_parts else 0.04))
    shape = (1.0 - creep) * shape + creep * _pole(on, 0.8) + 0.5 * tail * np.maximum(_pole(on, 0.6) - on, 0.0)
    ripple = float(random.uniform(0.0, 0.015)) * np.sin(2.0 * np.pi * (random.uniform(0.5, 9.0) * time_s + random.random()))
    return float(random.uniform(50, 135)) + planted.step_w * shape * (1.0 + ripple) + random.normal(0.0, 2.0, len(time_s))


def _late(time_s: Array, edge_s: Array, level: Array, on: Array, form: str) -> Array:
    """The delayed part of the power after a launch, 0 to 1; readings do not determine its form."""
    if form == "two poles":
        return _pole(_pole(on, 0.05), 0.05)
    if form == "one pole":
        return _pole(on, 0.08)
    starts = edge_s[level > 0]
    age = time_s - starts[np.maximum(np.searchsorted(starts, time_s, side="right") - 1, 0)]
    return _pole(on * np.clip((age - 0.1) / 0.1, 0.0, 1.0), 1e-3)


def _pole(x: Array, time_constant_s: float) -> Array:
    keep = float(np.exp(-GRID_S / time_constant_s))
    filtered: Array = lfilter([1.0 - keep], [1.0, -keep], x, zi=[keep * x[0]])[0]
    return filtered


def _updates(planted: PlantedSensor, duration_s: float, random: np.random.Generator) -> tuple[Array, Array]:
    """Times of the ends of windows, and the due times of all updates without their own jitter.

    Updates are rigid with jitter and wander, or have jitter that accumulates; some updates are missing.
    """
    count = int((duration_s + 1.3) / planted.period_s) + 20
    start = -1.2 + float(random.uniform(0, planted.period_s))
    if planted.rigid:
        update_s = start + planted.period_s * np.arange(count)
        wander = float(random.choice([0.0, 6e-4, 2e-3]))
        update_s = update_s + wander * np.sin(2.0 * np.pi * (update_s / random.uniform(30, 100) + random.random()))
        due_s = update_s
        update_s = update_s + random.normal(0.0, planted.jitter_s, count)
    else:
        update_s = due_s = start + np.cumsum(planted.period_s + random.normal(0.0, 6e-4, count))
    update_s = np.sort(update_s[update_s < duration_s])
    kept: Array = update_s[random.random(len(update_s)) >= random.choice([0.0, 0.002, 0.01])]
    return kept, due_s


def _averaged(planted: PlantedSensor, time_s: Array, power: Array, update_s: Array) -> Array:
    """Power averaged by the sensor's response at each update [W]."""
    edges = np.append(time_s, time_s[-1] + GRID_S)
    energy = np.concatenate([[0.0], np.cumsum(power) * GRID_S])

    def mean(width: float) -> Array:
        result: Array = (np.interp(update_s, edges, energy) - np.interp(update_s - width, edges, energy)) / width
        return result

    if planted.kernel == "boxcar":
        return mean(planted.width_s)
    if planted.kernel == "low-pass":
        return np.interp(update_s, edges[1:], _pole(power, 0.5 * planted.width_s))
    if planted.kernel == "none":
        return mean(1e-3)
    instant = mean(planted.period_s)
    weights = np.append(np.full(TRAILING_SLOTS - 1, TRAILING_WEIGHT), 1.0 - (TRAILING_SLOTS - 1) * TRAILING_WEIGHT)
    padded = np.concatenate([np.full(TRAILING_SLOTS - 1, instant[0]), instant])
    return np.convolve(padded, weights, mode="valid")
