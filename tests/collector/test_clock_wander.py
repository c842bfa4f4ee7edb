"""How far a recording's mean period is from the card's: the bounds hold what they say, and a long record does without wander."""

import numpy as np
import pytest

from collector.sensor.clock_likelihood import MOST_EVALUATED, find_changes
from collector.sensor.clock_posterior import Bend
from collector.sensor.clock_wander import AMPLITUDES_S, CYCLES_S, STEADY, card_bounds_s, wanders_of
from collector.sensor.update_clock import fit_update_clock
from estimator.quantities import Array

PERIOD_S, SLOTS = 0.1, 100
RECORDS = 300


def swing(random: np.random.Generator) -> tuple[float, float]:
    """First and second Legendre coefficient of a wander drawn from those that may be [s]."""
    place = np.linspace(-1.0, 1.0, 401)
    amplitude, cycle = (np.exp(random.uniform(*np.log(limits))) for limits in (AMPLITUDES_S, CYCLES_S))
    phase = amplitude * np.cos(np.pi * SLOTS * PERIOD_S / cycle * place + random.uniform(0.0, 2.0 * np.pi))
    return 1.5 * float(np.trapezoid(phase * place, place)), 2.5 * float(np.trapezoid(phase * (1.5 * place**2 - 0.5), place))


@pytest.mark.parametrize("bend_std_s", [2e-5, 2e-4])
@pytest.mark.parametrize("period_std_s", [1e-8, 2e-6])
def test_bounds_hold_68_and_95_percent_of_the_cards_own_periods(bend_std_s: float, period_std_s: float) -> None:
    random = np.random.default_rng(3)
    inside = []
    for _ in range(RECORDS):
        slope, bend = swing(random)
        seen = Bend(bend_s=bend + random.normal(0.0, bend_std_s), bend_std_s=bend_std_s)
        away = abs(2.0 * slope / SLOTS + random.normal(0.0, period_std_s))
        inside.append([away < bound for bound in card_bounds_s(wanders_of(seen, SLOTS * PERIOD_S), SLOTS, period_std_s)])
    assert np.mean(inside, axis=0) == pytest.approx([0.68, 0.95], abs=0.06)


def test_without_wander_the_bounds_are_those_of_a_normal_distribution() -> None:
    assert card_bounds_s(STEADY, SLOTS, 1e-6) == pytest.approx((1e-6, 2e-6), rel=5e-3)


def test_a_record_of_ten_minutes_leaves_little_to_wander() -> None:
    unknown = Bend(bend_s=0.0, bend_std_s=1.0)
    short, long = (card_bounds_s(wanders_of(unknown, slots * PERIOD_S), slots, 1e-9) for slots in (SLOTS, 6000))
    assert long[0] < 0.1 * short[0]
    assert long[1] < 0.1 * short[1]


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
