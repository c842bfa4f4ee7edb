"""Energy of an execution and of a launch by the board's counter: a second answer, independent of the readings' timing.

A counter moves in steps.  What is used of it lies between two of its own edges, each known to within a poll or an
update, whichever is shorter; resets and impossible rates are thrown out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.devices.protocols import EnergyReading
from collector.sampling import SECONDS_PER_NS
from collector.sensing.board_power import LoadStamps
from collector.sensing.known_sensor import DEFAULT_PERIOD_S
from estimator.vocabulary.quantities import Array, IntArray

ABSURD_LIMIT_FACTOR: Final = 2.0
"""A counter that runs faster than this multiple of the power limit is wrong."""
GAP_STD_SHARE: Final = 0.3
"""How well the power in a pause is known, as a share of the load's power over rest."""
MIN_EDGES: Final = 3
MOST_ENERGY_J: Final = 1e14
"""No counter holds so much: ten kilowatts for three hundred years."""
COUNTER_PERIOD_FACTOR: Final = 1.0
"""The counter is renewed with the readings: an edge lies at most so many update periods before it is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterEstimate:
    """Energy of an execution by the counter [J], nan with the reason under `doubt` where it has none.

    In the counter's own domain: no gain, no offset taken out.  `edges` of its steps were seen, `step_j` the smallest of them,
    `span_s` the time between the two that were used.
    """

    energy_j: float
    energy_std_j: float
    edges: int
    step_j: float
    span_s: float
    doubt: str


def counter_estimate(
    polls: Sequence[EnergyReading],
    load: LoadStamps,
    discard_s: float,
    lag_s: float,
    rest_w: float,
    period_s: float | None,
    power_limit_w: float,
) -> CounterEstimate:
    """Energy of an execution from polls of the counter during a load, the first `discard_s` left out.

    `lag_s` is the age of what the counter has counted when it moves, `rest_w` the reading at rest (for pauses),
    `period_s` the period of the board's updates.
    """
    if not polls:
        return _none("the board has no energy counter")
    time_s = np.array([poll.host_ns for poll in polls]) * SECONDS_PER_NS
    energy = np.array([poll.energy_j for poll in polls], dtype=np.float64)
    known = np.abs(energy) < MOST_ENERGY_J
    if not np.any(known):
        return _none("the counter gave no figure")
    time_s, energy = time_s[known], energy[known]
    order = np.argsort(time_s, kind="stable")
    time_s, energy = _longest_sane(time_s[order], energy[order], power_limit_w)
    moved = np.flatnonzero(np.diff(energy) > 0.0) + 1
    edge_s, bracket_s, level = _edges(time_s, energy, moved, period_s)
    begin, end = load.start_s[0] + discard_s, float(load.end_s[-1])
    inside = (edge_s - lag_s >= begin) & (edge_s - lag_s <= end)
    edge_s, bracket_s, level = edge_s[inside] - lag_s, bracket_s[inside], level[inside]
    if len(level) < MIN_EDGES:
        return _none(f"the counter moved {len(level)} times within the settled load; at least {MIN_EDGES} are needed: repeat longer")
    first, last = float(edge_s[0]), float(edge_s[-1])
    span = last - first
    counted = float(level[-1] - level[0])
    busy = _busy_s(load, first, last)
    pause = span - busy
    duration = float(np.mean(load.end_s - load.start_s))
    if busy <= 0.0:
        return _none("no execution lies between two edges of the counter: repeat longer")
    active_w = (counted - rest_w * pause) / busy if math.isfinite(rest_w) else counted / span
    ends_std = abs(active_w) * math.sqrt((bracket_s[0] ** 2 + bracket_s[-1] ** 2) / 12.0)
    step_w = abs(active_w - rest_w) if math.isfinite(rest_w) else abs(active_w)
    std = math.hypot(ends_std, GAP_STD_SHARE * step_w * pause) / busy
    steps = np.diff(level)
    return CounterEstimate(
        energy_j=active_w * duration,
        energy_std_j=std * duration,
        edges=len(level),
        step_j=float(steps.min()),
        span_s=span,
        doubt="",
    )


def _longest_sane(time_s: Array, energy_j: Array, power_limit_w: float) -> tuple[Array, Array]:
    """The longest stretch without a reset, a wrap or a rate that no board draws."""
    if len(time_s) < 2:
        return time_s, energy_j
    rise, elapsed = np.diff(energy_j), np.diff(time_s)
    good = (rise >= 0.0) & (rise <= ABSURD_LIMIT_FACTOR * power_limit_w * (elapsed + 2.0 * DEFAULT_PERIOD_S))
    breaks = np.concatenate([[0], np.flatnonzero(~good) + 1, [len(time_s)]])
    longest = int(np.argmax(np.diff(breaks)))
    part = slice(int(breaks[longest]), int(breaks[longest + 1]))
    return time_s[part], energy_j[part]


def _edges(time_s: Array, energy_j: Array, moved: IntArray, period_s: float | None) -> tuple[Array, Array, Array]:
    """Time at which the counter took each new value, the width of what is known of that time [s], and the value."""
    if not len(moved):
        return np.zeros(0), np.zeros(0), np.zeros(0)
    width = time_s[moved] - time_s[moved - 1]
    longest = COUNTER_PERIOD_FACTOR * (period_s or DEFAULT_PERIOD_S)
    width = np.minimum(width, longest)
    return time_s[moved] - 0.5 * width, width, energy_j[moved]


def _busy_s(load: LoadStamps, first_s: float, last_s: float) -> float:
    """Time of the load between two times [s]."""
    overlap = np.minimum(load.end_s, last_s) - np.maximum(load.start_s, first_s)
    return float(np.maximum(overlap, 0.0).sum())


def _none(doubt: str) -> CounterEstimate:
    nan = math.nan
    return CounterEstimate(energy_j=nan, energy_std_j=nan, edges=0, step_j=nan, span_s=0.0, doubt=doubt)


COUNTER_TOLERANCE: Final = 0.06
"""Share by which counter and readings may differ: rise of the board and the counter's own updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterEnergy:
    """Energy of one launch by the counter [J], nan where it has none; whether it is possible, and agrees with the readings."""

    energy_j: float
    absurd: bool
    disagrees: bool


def launch_energy(power_w: float, power_std_w: float, latency_s: float, latency_std_s: float) -> tuple[float, float]:
    """Energy of a launch and its standard error [J]: power times latency, gaps between launches included in both.

    Power and latency come from different instruments: their errors are independent.
    """
    energy = power_w * latency_s
    if not power_w > 0 or not latency_s > 0:
        return energy, math.nan
    return energy, abs(energy) * math.hypot(power_std_w / power_w, latency_std_s / latency_s)


def counter_energy(
    before: EnergyReading | None,
    after: EnergyReading | None,
    launches: int,
    duration_s: float,
    raw_power_w: float,
    rest_power_w: float,
    update_period_s: float,
    power_limit_w: float,
) -> CounterEnergy:
    """Energy of a launch by the counter, read just before and after a run.

    The counter moves in steps of about `update_period_s`, so that each end may miss or add one step of the
    difference between `raw_power_w` and `rest_power_w`.
    """
    if before is None or after is None:
        return CounterEnergy(energy_j=math.nan, absurd=False, disagrees=False)
    energy = after.energy_j - before.energy_j
    elapsed = (after.host_ns - before.host_ns) * SECONDS_PER_NS
    if not 0.0 <= energy <= ABSURD_LIMIT_FACTOR * power_limit_w * (elapsed + 2.0 * update_period_s):
        return CounterEnergy(energy_j=math.nan, absurd=True, disagrees=False)
    expected = raw_power_w * duration_s
    ends = 2.0 * update_period_s * abs(raw_power_w - rest_power_w if math.isfinite(rest_power_w) else raw_power_w)
    disagrees = math.isfinite(expected) and abs(energy - expected) > COUNTER_TOLERANCE * expected + ends
    return CounterEnergy(energy_j=energy / launches, absurd=False, disagrees=disagrees)
