"""Energy of an execution and of a launch by the board's counter: a second result, independent of the readings' timing.

A counter moves in steps.  The estimate uses two of these steps; each is known to within a poll or an update, whichever is shorter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.devices.protocols import EnergyReading
from collector.sampling import SECONDS_PER_NS
from collector.sensing.board_power import LoadStamps

ABSURD_LIMIT_FACTOR: Final = 2.0
"""A counter that runs faster than this multiple of the power limit is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterEstimate:
    """Energy of an execution by the counter [J], nan with the reason under `doubt`; gain and offset not corrected."""

    energy_j: float
    energy_std_j: float
    doubt: str


def counter_estimate(
    polls: Sequence[EnergyReading],
    load: LoadStamps,
    discard_s: float,
    lag_s: float,
    rest_w: float,
    period_s: float,
    power_limit_w: float,
) -> CounterEstimate:
    """Energy of an execution from polls of the counter during a load, without the first `discard_s`.

    `lag_s` is the age of the counted energy when the counter moves, `rest_w` the reading at rest (for pauses), `period_s` the period of
    the board's updates: each step occurs at most one period before a poll shows it.
    """

    def none(doubt: str) -> CounterEstimate:
        return CounterEstimate(energy_j=math.nan, energy_std_j=math.nan, doubt=doubt)

    if not polls:
        return none("the board has no energy counter")
    time_s = np.array([poll.host_ns for poll in polls]) * SECONDS_PER_NS
    energy = np.array([poll.energy_j for poll in polls], dtype=np.float64)
    if not np.all(np.abs(energy) < 1e14):  # ten kilowatts for three hundred years
        return none("the counter gave no figure")
    rise, elapsed = np.diff(energy), np.diff(time_s)
    if not np.all((rise >= 0.0) & (rise <= ABSURD_LIMIT_FACTOR * power_limit_w * (elapsed + 2.0 * period_s))):
        return none("the counter went backwards, or counted more than a board draws")
    moved = np.flatnonzero(rise > 0.0)
    width = np.minimum(elapsed[moved], period_s)
    edge_s, level = time_s[moved + 1] - 0.5 * width - lag_s, energy[moved + 1]
    inside = np.flatnonzero((edge_s >= load.start_s[0] + discard_s) & (edge_s <= load.end_s[-1]))
    if len(inside) < 3:
        return none(f"the counter moved {len(inside)} times within the settled load; at least 3 are needed: repeat longer")
    ends = inside[[0, -1]]
    first, last = edge_s[ends].tolist()
    busy = float(np.maximum(np.minimum(load.end_s, last) - np.maximum(load.start_s, first), 0.0).sum())
    if busy <= 0.0:
        return none("no execution lies between two edges of the counter: repeat longer")
    counted, pause = float(np.diff(level[ends])[0]), last - first - busy
    base_w = rest_w if math.isfinite(rest_w) else 0.0
    active_w = (counted - base_w * pause) / busy
    ends_std = abs(active_w) * float(np.linalg.norm(width[ends])) / math.sqrt(12.0)
    duration = float(np.mean(load.length_s))
    std = math.hypot(ends_std, 0.3 * abs(active_w - base_w) * pause) / busy
    return CounterEstimate(energy_j=active_w * duration, energy_std_j=std * duration, doubt="")


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterEnergy:
    """Energy of one launch by the counter [J], nan without one; whether it is possible, and agrees with the readings."""

    energy_j: float
    absurd: bool
    disagrees: bool


def launch_energy(power_w: float, power_std_w: float, latency_s: float, latency_std_s: float) -> tuple[float, float]:
    """Energy of a launch and its standard error [J]: power times latency, both including gaps between launches.

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
    # Largest relative difference between counter and readings: it allows for rise of the board and the counter's own updates.
    disagrees = math.isfinite(expected) and abs(energy - expected) > 0.06 * expected + ends
    return CounterEnergy(energy_j=energy / launches, absurd=False, disagrees=disagrees)
