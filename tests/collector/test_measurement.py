"""A measured row: true within its stated errors, and every doubt flagged."""

import math
from dataclasses import replace

import numpy as np
import pytest

from collector.bench import open_bench
from collector.campaigns.files import MeasurementSettings
from collector.campaigns.measurement import Point, measure_kernel
from collector.sampling import Sampler
from collector.sensing.steady import settle_time_s
from microbench.sizing import launches_for
from tests.collector.campaigns import Distorting
from tests.collector.dataset_rows import product, rows_to_table

BOARD = "a100-pcie-40gb"
SETTINGS = MeasurementSettings()
LINEAR = product(2048)


class Recording:
    """A runner that remembers its last run."""

    def __init__(self, bench):
        self.last = None
        self.prepare, self.supports, self._run = bench.runner.prepare, bench.runner.supports, bench.runner.run

    def run(self, prepared, launches):
        self.last = self._run(prepared, launches)
        return self.last


def a_point(operator=LINEAR, clock=900.0, **changes):
    return Point(**{"row_id": "r", "operator": operator, "l2_state": "warm", "sm_clock_mhz": clock, "trial": 0, "seed": 0, **changes})


def measured(calibration, point, change=None, settings=SETTINGS, locked=900.0):
    """A row of the simulated A100, its readings changed on their way."""
    with open_bench(f"sim:{BOARD}", seed=3) as bench:
        bench.gpu.lock_clock_mhz(locked)
        sensors = bench.sensors if change is None else (Distorting(bench.sensors[0], lambda part: change(part.power_w.copy())),)
        return measure_kernel(bench, Sampler(bench.gpu, sensors), point, settings, calibration)


def test_power_energy_and_time_are_true_within_their_errors(calibration):
    deviations = []
    with open_bench(f"sim:{BOARD}", seed=3) as bench:
        runner, loaded, sampler = Recording(bench), bench.runner._loaded.__getitem__, Sampler(bench.gpu, bench.sensors)
        bench = replace(bench, runner=runner)
        for size in (256, 512, 1024, 2048, 3072, 4096):
            for clock in (510.0, 900.0, 1410.0):
                bench.gpu.lock_clock_mhz(clock)
                operator = product(size)
                row = measure_kernel(bench, sampler, a_point(operator, clock), SETTINGS, calibration)
                start = runner.last.start_ns + round(settle_time_s(calibration, SETTINGS.settle_s) * 1e9)
                true_w = bench.planted_energy_j(start, runner.last.end_ns) / (runner.last.end_ns - start) * 1e9
                deviations.append((row["power_w"] - true_w) / row["power_std_w"])
                assert row["power_w"] == pytest.approx(true_w, rel=0.012)
                assert row["energy_j"] == pytest.approx(row["power_w"] * row["latency_s"])
                relative = math.hypot(row["power_std_w"] / row["power_w"], row["latency_std_s"] / row["latency_s"])
                assert row["energy_std_j"] == pytest.approx(row["energy_j"] * relative)
                if "throttled" not in row["flags"]:
                    assert row["latency_s"] == pytest.approx(loaded(runner.prepare(operator))(clock).period_s, rel=0.012)
                    assert row["sm_clock_measured_mhz"] == pytest.approx(clock, rel=0.015)
    # Of 18 normal deviates, 15 or fewer lie within two standard errors once in seventeen draws, and none beyond 3.5.
    assert np.mean(np.abs(deviations) < 2.0) >= 16 / 18
    assert np.max(np.abs(deviations)) < 3.5
    assert np.sqrt(np.mean(np.square(deviations))) < 1.4


def test_a_clean_row_fits_the_schema_and_carries_no_flag(calibration):
    row = measured(calibration, a_point(idle_before=True))
    assert row["flags"] == []
    assert rows_to_table([row], {}).num_rows == 1
    assert row["samples"] >= SETTINGS.updates - 1
    assert row["idle_before_w"] == pytest.approx(48.0, abs=3.0)
    assert row["sm_clock_mhz"] == 900.0
    assert row["voltage_v"] == pytest.approx(0.69, abs=0.02)
    assert row["started_unix_s"] > 1.7e9
    row = measured(calibration, a_point(), settings=MeasurementSettings(max_temperature_c=20.0))
    assert (row["idle_before_w"], row["temperature_before_c"], row["flags"]) == (None, None, ["hot"])


def some(value, every):
    """Replaces one reading of so many by a value; with 0 all of them."""
    return lambda power: np.where(np.arange(len(power)) % every == 0 if every else True, value, power)


def mostly(value):
    return lambda power: np.where(np.arange(len(power)) % 3, value, power)


@pytest.mark.parametrize(
    "change, flags, known",
    [
        *((some(value, 50), {"power_absurd"}, True) for value in (math.nan, -3.0, 1e9)),
        *((mostly(value), {"power_absurd"}, False) for value in (math.nan, -3.0, 1e9)),
        (some(61.3, 0), {"sensor_stuck"}, False),
        (some(math.nan, 0), {"power_missing", "power_absurd"}, False),
        (lambda power: 0.8 * power, {"counter_disagrees"}, None),
    ],
)
def test_a_few_doubtful_readings_are_left_out_and_a_doubtful_sensor_gives_no_power(change, flags, known, calibration):
    row = measured(calibration, a_point(), change)
    assert flags <= set(row["flags"])
    assert row["latency_s"] > 0
    if known is False:
        assert row["power_w"] is row["power_raw_w"] is row["power_std_w"] is row["energy_j"] is None
    elif known:
        assert row["power_w"] == pytest.approx(measured(calibration, a_point())["power_w"], rel=0.01)


def test_a_clock_that_was_not_held_is_flagged(calibration):
    assert "clock_off_target" in measured(calibration, a_point(clock=900.0), locked=600.0)["flags"]
    assert measured(calibration, a_point(clock=None), locked=600.0)["sm_clock_mhz"] is None


def test_launches_fill_the_window():
    for launch_s in (2e-6, 1e-3, 0.7):
        launches = launches_for(2.0, launch_s)
        assert 2.0 <= launches * launch_s <= 2.0 + 3.0 * launch_s
    assert launches_for(2.0, 100.0) >= 3
