"""Meters and loads that are not on the readings' clock, or tied to it by nothing: what is moved, what is said, what stays open."""

import re
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from random_sensors import PlantedSensor, Recording, draw_sensor, record
from sensor_identification import NAME, lone_step, sensor_record

from collector.correction.response import UNKNOWN_DELAY_STD_S, possible_responses
from collector.errors import SensorError
from collector.recordings.alignment import align_meter
from collector.recordings.loads import stamps_of_levels
from collector.sensor.averaging import fit_averaging
from collector.sensor.calibration import SensorCalibration
from collector.sensor.gain import fit_gain
from collector.sensor.identification import SensorRecord, identify_sensor
from collector.sensor.load import LoadStamps
from collector.sensor.record_shift import History, history_of_load, history_of_meter, meter_shift, record_shift
from collector.sensor.sources import meter_source
from collector.sensor.time_base import UNTIED_STD_S
from collector.sensor.update_clock import fit_update_clock
from estimator.quantities import Array

BOXCAR = PlantedSensor(
    kernel="boxcar", width_s=0.05, period_s=0.1, rigid=True, gain=0.96, offset_w=3.0, delay_s=2e-3, load_period_s=0.127, poll_s=0.005,
    noise_w=0.3, step_w=150.0, jitter_s=3e-4, load_spread=1e-2,
)  # fmt: skip
LOW_PASS = replace(BOXCAR, kernel="low-pass", width_s=0.03, period_s=0.0312, load_period_s=0.0842)
EARLY_S = 1e-3
"""The simulated host stamps a reading up to so much before it reads."""


@lru_cache(maxsize=8)
def recorded(planted: PlantedSensor, seed: int = 5) -> Recording:
    return record(planted, np.random.default_rng(seed))


def given(planted: PlantedSensor, *, meter_by_s: float = 0.0, load_by_s: float | None = None) -> SensorRecord:
    """Readings and a meter whose stamps are off by so much, and load stamps that are, where asked for."""
    made = sensor_record(recorded(planted), "meter")
    assert made.meter_s is not None
    assert made.load is not None
    return replace(made, meter_s=made.meter_s + meter_by_s, load=None if load_by_s is None else made.load.moved(load_by_s))


def identified(planted: PlantedSensor, *, meter_by_s: float = 0.0, load_by_s: float | None = None) -> SensorCalibration:
    return identify_sensor(given(planted, meter_by_s=meter_by_s, load_by_s=load_by_s), NAME).calibration


def sampled(every_s: float, *, means: bool) -> tuple[Array, Array]:
    """The true power as a slower meter has it: moments, or means over its interval, stamped at their middle."""
    made = recorded(BOXCAR)
    edge_s = np.arange(made.meter_s[0], made.meter_s[-1], every_s)
    if not means:
        return edge_s, np.interp(edge_s, made.meter_s, made.power_w)
    energy_j = np.concatenate([[0.0], np.cumsum(0.5 * (made.power_w[1:] + made.power_w[:-1]) * np.diff(made.meter_s))])
    return 0.5 * (edge_s[1:] + edge_s[:-1]), np.diff(np.interp(edge_s, made.meter_s, energy_j)) / every_s


@pytest.mark.parametrize("planted", [BOXCAR, LOW_PASS], ids=["boxcar", "low-pass"])
@pytest.mark.parametrize("by_s", [-7.3, -0.2, 0.2, 2.04])
def test_a_record_is_found_where_it_lies_and_nowhere_else(planted: PlantedSensor, by_s: float) -> None:
    made = recorded(planted)
    clock, updates = fit_update_clock(made.time_s, made.reading_w)
    meter, load = history_of_meter(made.meter_s, made.meter_w), history_of_load(stamps_of_levels(made.edge_s, made.level))
    for history in (meter, load):
        assert record_shift(updates.time_s, updates.value, history, clock.period_s) is None
        there = record_shift(updates.time_s, updates.value, History(time_s=history.time_s + by_s, sum=history.sum), clock.period_s)
        assert there is not None
        assert there.shift_s == pytest.approx(by_s, abs=0.03)
        assert there.explained > there.unmoved


@pytest.mark.parametrize("planted", [BOXCAR, LOW_PASS], ids=["boxcar", "low-pass"])
@pytest.mark.parametrize("by_s", [-3.7, 0.2])
def test_a_meter_that_is_off_is_moved_and_tells_all_but_the_delay(planted: PlantedSensor, by_s: float) -> None:
    found, aligned = identified(planted, meter_by_s=by_s), identified(planted)
    assert found.averaging == aligned.averaging == planted.kernel
    assert abs((found.window_s or 0.0) - planted.width_s) < 3.0 * (found.window_std_s or 0.0)
    assert abs((found.gain or 0.0) - planted.gain) < 3.0 * (found.gain_std or 0.0)
    assert f"moved by {-by_s:+.1f}"[:-1] in found.notes["time_base"]
    assert found.delay_s is None
    assert found.delay_std_s is None
    assert "nothing says" in found.notes["delay_s"]
    assert all(candidate["delay_s"] is None for candidate in found.candidates)
    assert "time_base" not in aligned.notes


def test_a_meter_that_ran_for_a_part_is_found_in_the_whole_record() -> None:
    made = record(BOXCAR, np.random.default_rng(8), 30.0)
    part = (made.meter_s > 3.0) & (made.meter_s < 12.0)
    given_ = SensorRecord(
        time_s=made.time_s, power_w=made.reading_w, meter_s=made.meter_s[part] + 14.0, meter_w=made.meter_w[part],
    )  # fmt: skip
    found = identify_sensor(given_, NAME).calibration
    assert "moved by -14.0" in found.notes["time_base"]
    assert found.averaging == "boxcar"
    assert abs((found.gain or 0.0) - BOXCAR.gain) < 3.0 * (found.gain_std or 0.0)


@pytest.mark.parametrize("by_s", [2.0, -3600.0])
def test_a_load_that_is_off_beside_a_meter_is_moved_to_it_and_ties_nothing(by_s: float) -> None:
    found = identified(BOXCAR, load_by_s=by_s)
    if abs(by_s) < 10.0:
        assert f"the load's stamps are not on the time base of the reference's power: moved by {-by_s:+.1f}" in found.notes["time_base"]
        assert (found.rise_time_s or 1.0) < 0.1
    assert found.averaging == "boxcar"
    assert (found.delay_std_s or 0.0) >= UNTIED_STD_S
    assert "reference_time" not in found.notes


def test_a_meter_that_is_off_is_moved_to_the_loads_launches_and_tells_the_delay_too() -> None:
    found, aligned = identified(BOXCAR, meter_by_s=2.04, load_by_s=0.0), identified(BOXCAR, load_by_s=0.0)
    assert "moved to the load's launches" in found.notes["time_base"]
    assert "launches" in found.notes["reference_time"]
    assert found.delay_s == pytest.approx(aligned.delay_s, abs=1e-4)
    assert (found.delay_std_s or 1.0) < 5e-4


def test_meter_and_load_that_are_off_together_tell_no_delay() -> None:
    found = identified(BOXCAR, meter_by_s=-2.04, load_by_s=-2.04)
    assert "the reference's and the load's stamps are not on the time base of the readings" in found.notes["time_base"]
    assert found.averaging == "boxcar"
    assert found.delay_s is None


@pytest.mark.parametrize("seed", [61, 62, 63])
def test_a_meter_of_another_board_is_moved_nowhere(seed: int) -> None:
    random = np.random.default_rng(seed)
    other = record(replace(draw_sensor(random), load_period_s=0.31), random)
    mixed = replace(given(BOXCAR), meter_s=other.meter_s, meter_w=other.meter_w)
    found = identify_sensor(mixed, NAME).calibration
    assert found.averaging == "undetermined"
    assert found.gain is None
    assert "time_base" not in found.notes
    assert "one time base" in found.notes["averaging"]


def test_a_line_that_explains_little_of_the_readings_is_no_gain() -> None:
    made = recorded(replace(BOXCAR, load_period_s=2.0))
    clock, updates = fit_update_clock(made.time_s, made.reading_w)
    meter = meter_source(made.meter_s, made.meter_w)
    fit = fit_averaging(updates, meter, clock).best
    assert fit_gain(updates, fit, meter).gain == pytest.approx(BOXCAR.gain, abs=0.02)
    loud = np.random.default_rng(3).normal(0.0, 2.0 * float(np.std(updates.value)), len(updates.value))
    with pytest.raises(SensorError, match=r"explains \d+% of the readings' variance; that is no gain"):
        fit_gain(replace(updates, value=updates.value + loud), fit, meter)


def test_a_lone_step_is_laid_over_no_other_but_said() -> None:
    found = identified(lone_step(BOXCAR), meter_by_s=2.0)
    assert found.averaging == "undetermined"
    assert found.gain is None
    assert re.search(r"moved by -(1\.9|2\.0)\d s", found.notes["averaging"])
    assert "on one time base" in found.notes["time_base"]


@pytest.mark.parametrize(("by_s", "may_be_the_board"), [(2.04, False), (0.1, False), (-0.1, True), (-0.5, False)])
def test_load_stamps_alone_that_are_off_are_said_and_not_moved(by_s: float, may_be_the_board: bool) -> None:
    recording = recorded(BOXCAR)
    load = stamps_of_levels(recording.edge_s, recording.level).moved(by_s)
    found = identify_sensor(SensorRecord(time_s=recording.time_s, power_w=recording.reading_w, load=load), NAME).calibration
    assert found.averaging == "undetermined"
    assert re.search(r"the load's stamps are not on the time base of the readings: moved by [-+]", found.notes["averaging"])
    assert ("or the board's power rises so late" in found.notes["averaging"]) == may_be_the_board
    assert "give readings, load and reference on one time base" in found.notes["averaging"]


@pytest.mark.parametrize("by_s", [-9e-3, -4e-3, 0.0, 5e-3, 9e-3])
def test_a_delays_error_holds_what_an_untied_clock_is_off_by(by_s: float) -> None:
    found = identified(BOXCAR, meter_by_s=by_s)
    assert found.delay_s == pytest.approx(BOXCAR.delay_s - by_s - 0.5 * EARLY_S, abs=1.5e-3), "what the clock is off by is in the delay"
    assert abs((found.delay_s or 0.0) - BOXCAR.delay_s) < 2.0 * (found.delay_std_s or 0.0)
    assert "its error holds" in found.notes["delay_s"]
    tied = identified(BOXCAR, load_by_s=0.0)
    assert (tied.delay_std_s or 1.0) < 0.1 * UNTIED_STD_S


@pytest.mark.parametrize("means", [True, False], ids=["means", "moments"])
def test_a_meter_that_is_too_slow_says_so_and_how_fast_it_should_be(means: bool) -> None:
    for every_s, words in ((0.05, "its power turns between them: too slow for this load"), (0.011, "")):
        meter_s, meter_w = sampled(every_s, means=means)
        found = identify_sensor(replace(given(BOXCAR), meter_s=meter_s, meter_w=meter_w), NAME).calibration
        assert found.averaging == "undetermined"
        assert f"a sample every {every_s * 1e3:g} ms" in found.notes["averaging"]
        assert words in found.notes["averaging"]
        assert "log " in found.notes["averaging"]
        assert "something else" not in found.notes["averaging"]
        assert found.gain is None or abs(found.gain - BOXCAR.gain) < 3.0 * (found.gain_std or 0.0)
    meter_s, meter_w = sampled(4e-3, means=means)
    found = identify_sensor(replace(given(BOXCAR), meter_s=meter_s, meter_w=meter_w), NAME).calibration
    assert found.averaging == "boxcar"
    assert abs((found.window_s or 0.0) - BOXCAR.width_s) < 2.5 * (found.window_std_s or 0.0)
    assert (found.window_std_s or 0.0) > 1e-3


def burst(half_s: float, every_s: float, seed: int) -> tuple[Array, Array, LoadStamps]:
    """Means of a quick load's power over a meter's intervals at their middles, with rest before and after it; and the load."""
    random = np.random.default_rng(seed)
    edge_s = 2.0 + np.cumsum(half_s * (1.0 + 0.03 * random.uniform(-1.0, 1.0, 2 * int(4.5 / half_s))))
    level = np.where(np.arange(len(edge_s)) % 2 == 0, 1.0, 0.0)
    on_s = np.concatenate([[0.0], np.cumsum(np.diff(edge_s) * level[:-1])])
    meter_s = np.arange(0.6, 12.5, every_s)
    mean = np.diff(np.interp(np.append(meter_s, meter_s[-1] + every_s), edge_s, on_s)) / every_s
    power_w = 80.0 + 180.0 * mean + random.normal(size=len(meter_s))
    return meter_s + 0.5 * every_s, power_w, stamps_of_levels(edge_s, level)


@pytest.mark.parametrize("every_s", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("half_s", [0.0127, 0.0231, 0.047])
def test_a_meter_too_slow_for_a_load_moves_no_load(every_s: float, half_s: float) -> None:
    meter_s, meter_w, load = burst(half_s, every_s, 3)
    assert meter_shift(meter_s, meter_w, history_of_load(load)) is None
    off = meter_shift(meter_s, meter_w, history_of_load(load.moved(2.0)))
    assert off is None or off.shift_s == pytest.approx(2.0, abs=0.06)


@pytest.mark.parametrize("lag_s", [0.0, 0.03, -0.04])
def test_a_meter_is_tied_to_the_right_launch_of_a_quick_load(lag_s: float) -> None:
    for seed in range(6):
        meter_s, meter_w, load = burst(0.023, 5e-4, seed)
        line = align_meter(meter_s + lag_s, meter_w, load)
        assert line is not None
        assert line.lag_s == pytest.approx(lag_s, abs=1e-3)


def test_a_reference_that_is_none_is_said() -> None:
    made = given(BOXCAR, load_by_s=0.0)
    found = identify_sensor(replace(made, meter_s=made.meter_s[:3], meter_w=made.meter_w[:3]), NAME).calibration
    assert "the reference was not used: the reference has 3 samples" in found.notes["time_base"]


def test_what_is_open_of_a_delay_is_open_in_a_correction() -> None:
    untied, moved = identified(BOXCAR), identified(BOXCAR, meter_by_s=2.04)
    (response,) = possible_responses(untied).responses
    assert response.delay_std_s >= UNTIED_STD_S
    possible = possible_responses(moved)
    assert (possible.responses[0].delay_s, possible.responses[0].delay_std_s) == (0.0, UNKNOWN_DELAY_STD_S)
    assert "delay is not known" in possible.notes["delay"]
    for calibration, least_s in ((untied, UNTIED_STD_S), (moved, UNKNOWN_DELAY_STD_S)):
        open_ = replace(calibration, averaging="undetermined", window_s=None, tau_s=None, delay_s=None, delay_std_s=None)
        assert all(each.delay_std_s >= least_s for each in possible_responses(open_).responses)
