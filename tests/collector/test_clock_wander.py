"""The part of a period's error that is wander: it holds what it says, and a long record does without it."""

import numpy as np
import pytest

from collector.sensor.clock_likelihood import MOST_EVALUATED, find_changes
from collector.sensor.clock_wander import AMPLITUDES_S, CYCLES_S, wander_std_s
from collector.sensor.update_clock import fit_update_clock
from estimator.quantities import Array

PERIOD_S, SLOTS = 0.1, 100


def swing(random: np.random.Generator) -> tuple[float, float]:
    """First and second Legendre coefficient of a wander drawn from those that may be [s]."""
    place = np.linspace(-1.0, 1.0, 401)
    amplitude, cycle = (np.exp(random.uniform(*np.log(limits))) for limits in (AMPLITUDES_S, CYCLES_S))
    phase = amplitude * np.cos(np.pi * SLOTS * PERIOD_S / cycle * place + random.uniform(0.0, 2.0 * np.pi))
    return 1.5 * float(np.trapezoid(phase * place, place)), 2.5 * float(np.trapezoid(phase * (1.5 * place**2 - 0.5), place))


@pytest.mark.parametrize("bend_std_s", [2e-5, 2e-4])
def test_two_in_three_slopes_lie_within_the_stated_error(bend_std_s: float) -> None:
    random = np.random.default_rng(3)
    inside = []
    for _ in range(300):
        slope, bend = swing(random)
        seen = bend + random.normal(0.0, bend_std_s)
        stated = wander_std_s(lambda x, seen=seen: -0.5 * ((x - seen) / bend_std_s) ** 2, SLOTS, PERIOD_S)  # type: ignore[misc]
        inside.append(abs(2.0 * slope / SLOTS) < stated)
    assert np.mean(inside) == pytest.approx(0.68, abs=0.08)


def test_a_record_of_ten_minutes_leaves_little_to_wander() -> None:
    def nothing(_bend_s: float) -> float:
        return 0.0

    assert wander_std_s(nothing, 6000, PERIOD_S) < 0.1 * wander_std_s(nothing, SLOTS, PERIOD_S)


def polled(count: int, wander_s: float) -> tuple[Array, Array]:
    """Polls of a sensor that updates every 20 ms with a new value each time."""
    random = np.random.default_rng(5)
    time_s = np.cumsum(0.005 * random.uniform(0.95, 1.2, count))
    tick = 0.02 * np.arange(int(time_s[-1] / 0.02) + 2)
    tick = tick + wander_s * np.sin(2.0 * np.pi * tick / 70.0) + random.normal(0.0, 2e-4, len(tick))
    value = np.round(random.normal(100.0, 20.0, len(tick)), 2)
    return time_s, value[np.maximum(np.searchsorted(tick, time_s, side="right") - 1, 0)]


@pytest.mark.parametrize("wander_s", [0.0, 2e-3])
def test_a_long_record_is_judged_by_stretches_from_all_of_it(wander_s: float) -> None:
    time_s, value = polled(160_000, wander_s)
    assert len(find_changes(time_s, value)) > 2 * MOST_EVALUATED
    clock, updates = fit_update_clock(time_s, value)
    assert clock.period_s == pytest.approx(0.02, abs=3e-7)
    assert clock.n_updates == pytest.approx(time_s[-1] / 0.02, abs=2)
    assert np.all(np.diff(updates.number) > 0)
