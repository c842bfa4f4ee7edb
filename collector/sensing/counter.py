"""Energy of a launch: from power and latency, and by the board's counter, a second result."""

import math
from dataclasses import dataclass
from typing import Final

from collector.devices.protocols import EnergyReading
from collector.sampling import SECONDS_PER_NS

ABSURD_LIMIT_FACTOR: Final = 2.0
"""A counter that runs faster than this multiple of the power limit is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterEnergy:
    """Energy of one launch by the counter [J], nan without one; whether it is possible, and agrees with the readings."""

    energy_j: float
    absurd: bool = False
    disagrees: bool = False


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
        return CounterEnergy(energy_j=math.nan)
    energy = after.energy_j - before.energy_j
    elapsed = (after.host_ns - before.host_ns) * SECONDS_PER_NS
    if not 0.0 <= energy <= ABSURD_LIMIT_FACTOR * power_limit_w * (elapsed + 2.0 * update_period_s):
        return CounterEnergy(energy_j=math.nan, absurd=True)
    expected = raw_power_w * duration_s
    ends = 2.0 * update_period_s * abs(raw_power_w - rest_power_w if math.isfinite(rest_power_w) else raw_power_w)
    # Largest relative difference between counter and readings: it allows for rise of the board and the counter's own updates.
    disagrees = math.isfinite(expected) and abs(energy - expected) > 0.06 * expected + ends
    return CounterEnergy(energy_j=energy / launches, disagrees=disagrees)
