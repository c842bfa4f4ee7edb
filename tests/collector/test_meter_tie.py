"""Where a meter's stamps lie against a load's: laws of the tie by launches, on rises made here."""

import numpy as np
import pytest

from collector.sensor.load import LoadStamps
from collector.sensor.meter_tie import MIN_EDGES, tie_of_meter
from collector.sensor.sources import LAUNCH_LAG_S
from estimator.quantities import Array

SPACING_S = 2e-4
SPAN_S = 6.0


def square_wave(count: int = 40, period_s: float = 0.127) -> LoadStamps:
    random = np.random.default_rng(3)
    starts = 0.3 + period_s * (np.arange(count) + 0.05 * random.random(count))
    return LoadStamps(start_s=starts, end_s=starts + 0.5 * period_s)


def energy_j(time_s: Array, load: LoadStamps, rise_s: float) -> Array:
    """60 W, and 150 W more by one pole from a launch's lag on until the run's end; integrated exactly."""
    total = 60.0 * time_s
    for start, end in zip(load.start_s + LAUNCH_LAG_S, load.end_s + LAUNCH_LAG_S, strict=True):
        for edge, sign in ((start, 1.0), (end, -1.0)):
            since = np.maximum(time_s - edge, 0.0)
            total = total + sign * 150.0 * (since + rise_s * np.expm1(-since / rise_s))
    return np.asarray(total)


def metered(load: LoadStamps, *, rise_s: float, late_s: float, noise_w: float, spacing_s: float = SPACING_S) -> tuple[Array, Array]:
    """Samples that are means over the last 10 µs, with stamps too late."""
    time_s = np.arange(0.0, SPAN_S, spacing_s)
    power_w = (energy_j(time_s, load, rise_s) - energy_j(time_s - 1e-5, load, rise_s)) / 1e-5
    return time_s + late_s, power_w + np.random.default_rng(1).normal(0.0, noise_w, len(time_s))


@pytest.mark.parametrize("late_s", [-5e-4, 0.0, 1e-3])
@pytest.mark.parametrize("rise_s", [5e-5, 1e-3, 4e-3])
@pytest.mark.parametrize("noise_w", [0.0, 3.0])
def test_stamps_that_are_late_are_found_to_be_whatever_the_form_of_the_rise(late_s: float, rise_s: float, noise_w: float) -> None:
    load = square_wave()
    found = tie_of_meter(*metered(load, rise_s=rise_s, late_s=late_s, noise_w=noise_w), load)
    assert found.edges == len(load.start_s)
    assert found.lag_s == pytest.approx(late_s, abs=1e-4)
    assert 1e-4 <= found.std_s < 2e-4


def test_means_over_a_millisecond_with_stamps_at_their_ends_lie_half_of_it_late() -> None:
    load = square_wave()
    edge_s = np.arange(0.0, SPAN_S, 1e-3)
    found = tie_of_meter(edge_s[1:], np.diff(energy_j(edge_s, load, 1e-3)) / 1e-3, load)
    assert found.lag_s == pytest.approx(5e-4, abs=1.5 * found.std_s)


def test_what_launches_do_not_tell_stays_within_a_samples_interval() -> None:
    few = square_wave(MIN_EDGES - 1)
    time_s, power_w = metered(few, rise_s=1e-3, late_s=1e-3, noise_w=1.0)
    for load in (few, None):
        found = tie_of_meter(time_s, power_w, load)
        assert (found.lag_s, found.edges) == (0.0, 0)
        assert found.std_s == pytest.approx(SPACING_S / 12.0**0.5, rel=1e-3)


@pytest.mark.parametrize("late_s", [6e-3, -6e-3])
def test_launches_far_from_the_meters_edges_move_nothing(late_s: float) -> None:
    load = square_wave()
    assert tie_of_meter(*metered(load, rise_s=1e-3, late_s=late_s, noise_w=1.0), load).edges == 0


def test_power_that_no_launch_moves_ties_nothing() -> None:
    load = square_wave()
    time_s = np.arange(0.0, SPAN_S, SPACING_S)
    assert tie_of_meter(time_s, np.random.default_rng(5).normal(100.0, 2.0, len(time_s)), load).edges == 0


def test_samples_that_are_no_numbers_and_a_record_of_one_are_no_trouble() -> None:
    load = square_wave()
    time_s, power_w = metered(load, rise_s=1e-3, late_s=1e-3, noise_w=0.5)
    power_w[::50] = np.nan
    assert tie_of_meter(time_s, power_w, load).lag_s == pytest.approx(1e-3, abs=1e-4)
    assert tie_of_meter(time_s[:1], power_w[:1], load).edges == 0
    assert tie_of_meter(time_s[:0], power_w[:0], load).edges == 0
