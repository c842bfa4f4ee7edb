"""Identifying sensors: random simulated ones, published traces, and what a record cannot tell.

`benchmarks/sensor_identification.py` prints the figures themselves, from 300 simulated sensors.
"""

from dataclasses import replace

import numpy as np
import pytest
from foreign_sensors import figures
from random_sensors import PlantedSensor, draw_sensor, record
from sensor_identification import KINDS, NAME, rows_of, sensor_record

from collector.recordings.run import read_run
from collector.sensing.board_power import LoadStamps
from collector.sensing.clock import fit_update_clock
from collector.sensing.identify import SensorRecord, identify_sensor

SAMPLE = range(5000, 5004)
lone_step, locked = KINDS["lone step"], KINDS["load locked at two periods"]

A100_LIKE = PlantedSensor(
    kernel="low-pass", width_s=0.025, period_s=0.1012, rigid=True, gain=0.955, offset_w=-1.2, delay_s=-2e-3,
    load_period_s=1.27 * 0.1012, poll_s=0.007, noise_w=0.8, step_w=150.0, jitter_s=4e-4,
)  # fmt: skip


def recorded(planted, seed=1):
    return record(planted, np.random.default_rng(seed))


def calibration(given):
    return identify_sensor(given, NAME).calibration


def identified(planted, source, seed=1):
    return calibration(sensor_record(recorded(planted, seed), source == "meter"))


def test_random_sensors_are_named_rightly_or_not_at_all():
    numbers = figures([row for seed in SAMPLE for row in rows_of("random", seed)])
    for source, own in numbers.items():
        assert own["wrong"] == 0, own["wrong ones"]
        assert own["period within 0.1 ms"] == 1.0
        assert own["right"] >= (3 if "meter" in source else 2)
    assert all(own["width within 1 ms"] == 1.0 for source, own in numbers.items() if "meter" in source)


@pytest.mark.parametrize("kernel", ["boxcar", "low-pass"])
@pytest.mark.parametrize("source", ["meter", "load"])
def test_a_lone_step_is_undetermined(kernel, source):
    found = identified(lone_step(replace(A100_LIKE, kernel=kernel)), source)
    assert found.averaging == "undetermined"
    assert found.window_s is None
    assert "edges" in found.notes["averaging"]
    assert "square wave" in found.notes["averaging"]
    assert (found.gain is not None) == (source == "meter")


@pytest.mark.parametrize(
    "kernel, width_s, load_period_s, source",
    [("low-pass", 1.0, 0.1285, "meter"), ("low-pass", 1.0, 0.47, "load"), ("boxcar", 3.0, 1.5, "load"), ("boxcar", 1.7, 0.9, "meter")],
)
def test_an_averaging_longer_than_those_searched_is_undetermined(kernel, width_s, load_period_s, source):
    found = identified(replace(A100_LIKE, kernel=kernel, width_s=width_s, load_period_s=load_period_s), source)
    assert (found.averaging, found.window_s, found.gain) == ("undetermined", None, None)


@pytest.mark.parametrize("kernel, width_s, period_s", [("boxcar", 0.1, 0.1), ("low-pass", 0.06, 0.0312)])
def test_a_step_tells_a_kernel_where_a_meter_shows_the_board_and_both_edges_agree(kernel, width_s, period_s):
    planted = replace(A100_LIKE, kernel=kernel, width_s=width_s, period_s=period_s, noise_w=0.3)
    found = identified(lone_step(planted), "meter", seed=8)
    assert found.averaging == kernel
    assert abs(found.window_s - width_s) < 2.5 * found.window_std_s


@pytest.mark.parametrize("seed", [7013, 7016])
def test_noise_of_the_meter_does_not_make_a_short_averaging_long(seed):
    random = np.random.default_rng(seed)
    planted = lone_step(draw_sensor(random))
    assert planted.width_s < 6e-3
    found = calibration(sensor_record(record(planted, random), True))
    assert found.averaging == "undetermined" or abs(found.window_s - planted.width_s) < 3.0 * found.window_std_s


@pytest.mark.parametrize(
    "kernel, width_s, source", [("trailing-mean", 1.1, "meter"), ("trailing-mean", 1.1, "load"), ("boxcar", 0.6, "meter")]
)
def test_a_locked_load_tells_a_mean_that_ramps_over_many_updates(kernel, width_s, source):
    planted = replace(A100_LIKE, kernel=kernel, width_s=width_s, period_s=0.1, noise_w=0.1)
    found = identified(locked(planted), source)
    assert found.averaging == "trailing-mean"
    assert found.window_s == pytest.approx(width_s, abs=0.05)


@pytest.mark.parametrize("source", ["meter", "load"])
def test_a_locked_load_is_undetermined_and_says_so(source):
    found = identified(locked(replace(A100_LIKE, jitter_s=1e-4)), source)
    assert found.averaging == "undetermined"
    assert "locked" in found.notes["averaging"]
    assert (found.rise_time_s, found.transient) == (None, None)
    assert "locked" in found.notes["transient"]
    assert (found.gain, found.gain_std, found.offset_w) == (None, None, None), "a tight error for a gain of the phase that was seen"
    assert ("locked" if source == "meter" else "meter") in found.notes["gain"]


@pytest.mark.parametrize("lost_w", [0.0, float("nan"), 6e4])
def test_what_no_board_draws_is_left_out_and_said(lost_w):
    recording = sensor_record(recorded(A100_LIKE), False)
    lost = np.arange(len(recording.power_w)) % 40 == 7
    found = calibration(replace(recording, power_w=np.where(lost, lost_w, recording.power_w)))
    assert found.averaging == "low-pass"
    assert found.update_period_s == pytest.approx(A100_LIKE.period_s, abs=1e-4)
    assert found.notes["readings"].startswith(f"{np.count_nonzero(lost)} of {len(lost)} readings are no power")


METERED = sensor_record(recorded(A100_LIKE), True)


def test_a_meter_alone_is_enough_and_its_delay_holds_that_its_clock_is_not_tied():
    found = calibration(replace(METERED, load=None))
    assert found.averaging == "low-pass"
    assert found.tau_s == pytest.approx(0.0125, abs=5e-4)
    assert found.gain == pytest.approx(0.955, abs=0.01)
    assert found.rise_time_s == pytest.approx(2.3 * 0.0125 + 3e-3, abs=6e-3)
    assert found.delay_std_s > 8e-3 > calibration(METERED).delay_std_s


def test_delay_moves_with_the_stamps():
    before, after = (calibration(replace(METERED, time_s=METERED.time_s + shift_s)) for shift_s in (0.0, -0.006))
    assert after.delay_s - before.delay_s == pytest.approx(-0.006, abs=3e-4)


def test_a_meter_on_another_clock_gives_nothing_but_the_reason():
    found = calibration(replace(METERED, load=None, meter_s=METERED.meter_s + 3.7))
    assert (found.averaging, found.gain) == ("undetermined", None)
    assert "one time base" in found.notes["averaging"]


@pytest.mark.parametrize(
    "change",
    [
        {"meter_s": METERED.meter_s + 3.7},
        {"meter_w": np.where(METERED.meter_s < METERED.meter_s.mean(), METERED.meter_w, 0.3)},
        {"meter_w": np.full_like(METERED.meter_w, 55.0)},
        {"meter_w": np.full_like(METERED.meter_w, np.nan)},
    ],
    ids=["late", "unplugged", "constant", "none"],
)
def test_a_meter_that_the_readings_do_not_follow_takes_nothing_from_what_the_load_tells(change):
    found, alone = calibration(replace(METERED, **change)), calibration(replace(METERED, meter_s=None, meter_w=None))
    assert found.notes["gain"].startswith("the reference was not used")
    assert replace(found, notes=alone.notes) == alone


@pytest.mark.parametrize("share, beside_w", [(0.6, 0.0), (0.15, 10.0), (1.0, 80.0)], ids=["one line of two", "slot", "whole machine"])
def test_a_meter_of_other_power_than_the_boards_gives_no_gain(share, beside_w):
    found = calibration(replace(METERED, meter_w=share * METERED.meter_w + beside_w))
    assert (found.averaging, found.gain, found.offset_w) == ("low-pass", None, None)
    assert "supply lines" in found.notes["gain"]


@pytest.mark.parametrize("step_w, share", [(0.01, 0.8), (1.0, 0.8), (5.0, 1.0)])
def test_a_meter_at_the_end_of_its_range_gives_no_gain_and_one_in_coarse_steps_does(step_w, share):
    meter_w = step_w * np.round(np.minimum(METERED.meter_w, share * METERED.meter_w.max()) / step_w)
    found = calibration(replace(METERED, meter_w=meter_w))
    if share == 1.0:
        assert found.gain == pytest.approx(0.955, abs=0.01)
        return
    assert found.gain is None
    assert "end of the meter's range" in found.notes["gain"]


def test_a_meter_too_slow_for_the_averaging_tells_none():
    assert calibration(replace(METERED, meter_s=METERED.meter_s[::50], meter_w=METERED.meter_w[::50])).averaging == "undetermined"


SLOW_LOAD = replace(A100_LIKE, kernel="boxcar", width_s=0.02, load_period_s=2.0)


def late_share(recording):
    """Share of the load's first rise that is not there after 20 ms."""
    before, at_once, later = (
        float(recording.power_w[int((recording.edge_s[0] + shift - recording.meter_s[0]) / 2e-4) :][:100].mean())
        for shift in (-0.05, 0.02, 0.7)
    )
    return 1.0 - (at_once - before) / (later - before)


def test_a_slow_board_is_told_from_a_slow_sensor():
    recording = next(found for found in (recorded(SLOW_LOAD, seed) for seed in range(40, 60)) if late_share(found) > 0.25)
    found = calibration(sensor_record(recording, True))
    assert found.transient == "lagged"
    assert found.board_rise_s > 0.04


EVEN_S, CHANCE = np.arange(500) * 0.01, np.random.default_rng(1)
SAYING_NOTHING = {
    "constant": (EVEN_S, np.full(500, 60.0)),
    "nan": (EVEN_S, np.full(500, np.nan)),
    "every poll": (EVEN_S, np.arange(500.0)),
    "three": (EVEN_S[:3], np.arange(1.0, 4.0)),
    "too fast": (np.sort(CHANCE.uniform(0, 1e-4, 500)), CHANCE.normal(50, 9, 500)),
    "wild stamps": (np.cumsum(CHANCE.pareto(0.5, 500)), np.repeat(CHANCE.normal(50, 9, 100), 5)),
}


@pytest.mark.parametrize("what", SAYING_NOTHING)
def test_records_that_say_nothing_end_in_reasons(what):
    time_s, power_w = SAYING_NOTHING[what]
    load = LoadStamps(start_s=np.array([1.0, 2.0]), end_s=np.array([1.5, 2.5]))
    found = calibration(SensorRecord(time_s=time_s, power_w=power_w, load=load, meter_s=time_s, meter_w=power_w))
    for key in ("update_period_s", "window_s", "gain", "delay_s", "rise_time_s"):
        assert getattr(found, key) is not None or found.notes[key]


def published(shared_data, run, column, *, meter):
    folder = shared_data / "sensors" / run
    read = read_run(folder / "gpudata.csv", folder / "timestamps.csv", folder / "PMD_data.bin" if meter else None, column)
    return calibration(read.record)


def test_the_a100s_square_wave_shows_a_low_pass_and_its_stamps_say_how_sure_they_are(shared_data):
    """Its power follows launches at once, not in the 1.1 ms that stamps are taken to be followed in."""
    metered, stamped = (published(shared_data, "a100_square_wave", "power.draw.instant", meter=meter) for meter in (True, False))
    for found in (metered, stamped):
        assert found.averaging == "low-pass"
        assert found.window_s == pytest.approx(0.025, abs=1e-3)
        assert found.update_period_s == pytest.approx(0.1012, abs=1e-4)
    assert (metered.gain, metered.offset_w) == (pytest.approx(0.955, abs=0.01), pytest.approx(-1.5, abs=1.5))
    assert metered.residual_w <= 1.6
    assert stamped.gain is None
    away_s = abs(stamped.delay_s - metered.delay_s)
    assert 5e-4 < away_s < 2.0 * stamped.delay_std_s < 2e-3
    assert abs(stamped.window_s - metered.window_s) < 2.0 * stamped.window_std_s < 2e-3


def test_the_rtx_3090s_step_shows_its_fields_and_its_gain(shared_data):
    average = published(shared_data, "rtx3090_step", "power.draw.average", meter=True)
    assert average.averaging == "trailing-mean"
    assert average.window_s == pytest.approx(1.0, abs=0.1)
    assert average.transient == "ramp"
    instant = published(shared_data, "rtx3090_step", "power.draw.instant", meter=True)
    assert instant.averaging == "boxcar"
    assert instant.window_s == pytest.approx(0.1, abs=5e-3)
    assert instant.gain == pytest.approx(0.948, abs=0.01)
    assert instant.transient == "lagged"
    assert instant.board_rise_s > 0.1


def test_the_rtx_3090s_step_is_undetermined_without_the_meter_and_its_ramp_is_not_called_instant(shared_data):
    instant, average = (published(shared_data, "rtx3090_step", f"power.draw.{name}", meter=False) for name in ("instant", "average"))
    assert instant.averaging == average.averaging == "undetermined"
    assert "edges" in instant.notes["averaging"]
    assert average.rise_time_s > 0.8
    assert average.transient is None
    assert "meter tells which" in average.notes["transient"]


@pytest.mark.parametrize("log, period_s", [("a100_10ms_load", 0.101148), ("rtx3090_10ms_load", 0.099970)])
def test_the_long_logs_give_the_published_periods(shared_data, log, period_s):
    read = read_run(shared_data / "sensors" / "logs" / f"{log}.csv").record
    clock, _ = fit_update_clock(read.time_s, read.power_w)
    assert clock.period_s == pytest.approx(period_s, abs=1e-4)
    assert abs(clock.period_s - period_s) < 2.1 * clock.card_period_std_s
