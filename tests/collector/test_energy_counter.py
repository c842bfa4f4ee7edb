"""The energy counter as a second answer: between its own edges, never across a reset, never faster than a board can be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.devices.protocols import EnergyReading
from collector.sensing.board_power import LoadStamps
from collector.sensing.counter import counter_estimate

PERIOD_S = 0.1
LIMIT_W = 400.0
NS = 1_000_000_000


def polls(power_w: float, span_s: float, poll_s: float, *, phase_s: float = 0.0, origin_j: float = 5e3) -> list[EnergyReading]:
    """A counter that is renewed every PERIOD_S, polled every `poll_s`."""
    times = np.arange(0.0, span_s, poll_s)
    counted = origin_j + power_w * PERIOD_S * np.floor((times - phase_s) / PERIOD_S)
    return [EnergyReading(host_ns=round(t * NS), energy_j=round(float(e), 3)) for t, e in zip(times, counted, strict=True)]


def back_to_back(length_s: float, count: int) -> LoadStamps:
    start = length_s * np.arange(count, dtype=np.float64)
    return LoadStamps(start_s=start, end_s=start + length_s)


@given(st.floats(60.0, 350.0), st.floats(0.003, 0.3), st.floats(0.0, 0.0999))
def test_a_constant_power_is_found_within_the_stated_error(power_w: float, poll_s: float, phase_s: float) -> None:
    load = back_to_back(0.05, 100)
    found = counter_estimate(polls(power_w, 5.0, poll_s, phase_s=phase_s), load, 0.3, 0.0, math.nan, PERIOD_S, LIMIT_W)
    assert abs(found.energy_j - power_w * 0.05) < 2.5 * found.energy_std_j + 1e-6
    assert found.energy_std_j < 0.05 * found.energy_j
    assert found.doubt == ""


def test_pauses_are_taken_out_at_the_rest_power() -> None:
    start = 0.25 * np.arange(20, dtype=np.float64)
    load = LoadStamps(start_s=start, end_s=start + 0.2)
    time_s = np.arange(0.0, 5.0, 0.005)
    busy = np.minimum(np.mod(time_s, 0.25), 0.2) + 0.2 * np.floor(time_s / 0.25)
    energy = 200.0 * busy + 50.0 * (time_s - busy)
    readings = [EnergyReading(host_ns=round(t * NS), energy_j=float(e)) for t, e in zip(time_s, energy, strict=True)]
    found = counter_estimate(readings, load, 0.2, 0.0, 50.0, 0.01, LIMIT_W)
    assert found.energy_j == pytest.approx(40.0, rel=0.01)


def test_a_reset_or_an_impossible_rate_gives_no_answer() -> None:
    load = back_to_back(0.05, 100)
    good = polls(200.0, 5.0, 0.01)
    reset = [*good[:150], *(EnergyReading(host_ns=r.host_ns, energy_j=r.energy_j - 5e3) for r in good[150:])]
    leap = [*good[:150], *(EnergyReading(host_ns=r.host_ns, energy_j=r.energy_j + 1e6) for r in good[150:])]
    for broken in (reset, leap):
        found = counter_estimate(broken, load, 0.3, 0.0, math.nan, PERIOD_S, LIMIT_W)
        assert math.isnan(found.energy_j)
        assert "backwards" in found.doubt


def test_too_little_counted_is_no_answer() -> None:
    load = back_to_back(0.05, 4)
    for few in ([], polls(200.0, 0.2, 0.01), polls(0.0, 5.0, 0.01)):
        found = counter_estimate(few, load, 0.0, 0.0, 60.0, PERIOD_S, LIMIT_W)
        assert math.isnan(found.energy_j)
        assert found.doubt


@given(st.lists(st.tuples(st.integers(0, 10**11), st.floats(allow_nan=True, allow_infinity=True)), max_size=30))
def test_no_counter_record_makes_it_fail(raw: list[tuple[int, float]]) -> None:
    readings = [EnergyReading(host_ns=stamp, energy_j=energy) for stamp, energy in raw]
    counter_estimate(readings, back_to_back(0.05, 100), 0.1, 0.0, 60.0, PERIOD_S, LIMIT_W)
