"""A measured row: true within its stated errors; doubts, and disturbances by the card and its surroundings, are flagged."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from collector.bench import open_bench
from collector.campaigns.context_guard import GuardedRunner, guarded_bench
from collector.campaigns.files import MeasurementSettings
from collector.campaigns.measurement import Point, measure_kernel
from collector.campaigns.running import Campaign
from collector.devices.protocols import THROTTLE_BITS
from collector.devices.tracer import NOT_TRACED
from collector.sampling import Sampler
from collector.sensing.steady import settle_time_s
from collector.simulated.profile import Faults
from microbench.sizing import launches_for
from tests.collector.campaigns import Distorting, collected, planned
from tests.collector.dataset_rows import addition, product, rows_to_table

BOARD = "sim:a100-pcie-40gb"
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
    with open_bench(BOARD, seed=3) as bench:
        bench.gpu.lock_clock_mhz(locked)
        sensors = bench.sensors if change is None else (Distorting(bench.sensors[0], lambda part: change(part.power_w.copy())),)
        return measure_kernel(bench, Sampler(bench.gpu, sensors), point, settings, calibration)


def test_power_energy_and_time_are_true_within_their_errors(calibration):
    deviations = []
    with open_bench(BOARD, seed=3) as bench:
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


def test_a_board_without_a_power_limit_has_the_power_of_one_with_it(calibration):
    with open_bench(BOARD, seed=3) as bench:
        gpu = bench.gpu
        gpu.lock_clock_mhz(900.0)
        silent = {"identity": gpu.identity, "read_states": gpu.read_states}
        silent = SimpleNamespace(**silent, state=lambda: replace(gpu.state(), power_limit_w=math.nan))
        row = measure_kernel(replace(bench, gpu=silent), Sampler(silent, bench.sensors), a_point(), SETTINGS, calibration)
    assert row == {**measured(calibration, a_point()), "power_limit_w": None}


def test_a_clock_that_was_not_held_is_flagged(calibration):
    assert "clock_off_target" in measured(calibration, a_point(clock=900.0), locked=600.0)["flags"]
    assert measured(calibration, a_point(clock=None), locked=600.0)["sm_clock_mhz"] is None


def test_launches_fill_the_window():
    for launch_s in (2e-6, 1e-3, 0.7):
        launches = launches_for(2.0, launch_s)
        assert 2.0 <= launches * launch_s <= 2.0 + 3.0 * launch_s
    assert launches_for(2.0, 100.0) >= 3


H100 = "sim:h100-sxm"
CLOCKS = (900.0,)
TRACED = re.compile("kernel_name|registers|shared_bytes|blocks_per_sm|tile_|stages|split_k|grid_|block_")
"""Columns that only a trace tells."""

LARGE = product(8192, precision="bf16")
ADD = addition(2**26, "bf16")


def rows(calibration, points, faults, settings=SETTINGS):
    with open_bench(H100, seed=5, faults=faults) as bench:
        sampler = Sampler(bench.gpu, bench.sensors)
        return [measure_kernel(bench, sampler, one, settings, calibration) for one in points]


@pytest.mark.parametrize("lag_s", [0.005, 0.03, 0.1])
def test_the_limit_takes_hold_with_its_time_constant_and_ends_where_it_ends_without(lag_s):
    ends = []
    for faults in (Faults(), Faults(limit_lag_s=lag_s)):
        with open_bench(H100, faults=faults) as bench:
            prepared = bench.runner.prepare(LARGE)
            launch_s = float(bench.runner.run(prepared, 3).segment_s.mean())
            begin_s = bench.clock.now_ns() * 1e-9
            bench.gpu.read_states()
            bench.runner.run(prepared, launches_for(2.0, launch_s))
            states = bench.gpu.read_states()
            ends.append(states.sm_clock_mhz[-1])
    since_s = states.host_ns * 1e-9 - begin_s
    share = (1980.0 - states.sm_clock_mhz) / (1980.0 - ends[0])
    assert ends[0] == ends[1] < 1700.0
    inside = (since_s > 0.015) & (since_s < 1.9)  # past the governor's first step
    assert share[inside] == pytest.approx(-np.expm1(-since_s[inside] / lag_s), abs=0.35)
    assert states.throttle_mask[-1] & THROTTLE_BITS["sw_power_cap"]


@pytest.mark.parametrize("lag_s", [0.0, 0.1, 2.0])
def test_a_capped_row_is_throttled_and_no_worse(calibration, lag_s):
    (row,) = rows(calibration, [a_point(LARGE, None)], Faults(limit_lag_s=lag_s))
    assert "throttled" in row["flags"]
    assert row["throttle_reasons"] & THROTTLE_BITS["sw_power_cap"]
    assert row["sm_clock_measured_mhz"] < 1900.0
    assert not {"range_mismatch", "clock_varied"} & set(row["flags"])


def test_a_timed_run_has_the_clock_of_its_own_launches_where_calls_are_slow(calibration):
    settings = MeasurementSettings(timed_s=0.15)
    found = rows(calibration, [a_point(ADD, None, timed_only=True)] * 12, Faults(call_s=0.012), settings)
    assert {row["sm_clock_measured_mhz"] for row in found} == {1980.0}
    assert all("power_missing" not in row["flags"] for row in found)


def test_slow_calls_cost_time_and_readings_but_no_power(calibration):
    quick, slow = (rows(calibration, [a_point(ADD, None)], faults)[0] for faults in (Faults(), Faults(call_s=0.012)))
    assert slow["power_w"] == pytest.approx(quick["power_w"], rel=0.01)
    assert "sensor_stuck" not in slow["flags"]


@pytest.mark.parametrize(
    "faults, trace, why", [(Faults(late_trace_share=1.0), True, "too late"), (Faults(), False, NOT_TRACED), (Faults(), True, "")]
)
def test_a_kernel_without_a_trace_runs_without_a_name(calibration, faults, trace, why):
    with open_bench(H100, faults=faults, trace=trace) as bench:
        prepared = bench.runner.prepare(LARGE)
        assert why in prepared.untraced
        assert bool(prepared.kernel_name) == (not why)
        assert bench.runner.run(prepared, 3).segment_s.mean() > 0.0
        row = measure_kernel(bench, Sampler(bench.gpu, bench.sensors), a_point(LARGE, None), SETTINGS, calibration)
    assert ("kernel_untraced" in row["flags"]) == bool(why)
    assert {value is None for name, value in row.items() if TRACED.match(name)} == {bool(why)}
    assert rows_to_table([row], {}).num_rows == 1


@pytest.mark.parametrize("fault, guarded", [("", False), ('hangs = "ffma_k8_u64"', True)])
def test_a_board_that_hangs_is_guarded(tmp_path, repository, fault, guarded):
    board = tmp_path / "board.toml"
    board.write_text((repository / "configs" / "simulated-boards" / "h100-sxm.toml").read_text() + f"\n[faults]\n{fault}\n")
    with open_bench(f"sim:{board}") as bench, guarded_bench(bench, tmp_path / "d.parquet") as found:
        assert isinstance(found.runner, GuardedRunner) == guarded


@pytest.mark.parametrize(
    "faults, flag",
    [(Faults(throttle_share=0.3), "throttled"), (Faults(foreign_share=0.15), "shared_board"), (Faults(stale_share=0.15), "sensor_stuck")],
    ids=["throttle", "foreign process", "frozen sensor"],
)
def test_what_something_passing_spoilt_is_flagged(faults, flag, tiny, calibration, tmp_path):
    outcome = collected(tiny, tmp_path / "d.parquet", calibration, clocks=CLOCKS, faults=faults)
    assert 0 < outcome.flags.get(flag, 0) < outcome.rows == outcome.rows_planned


@pytest.mark.parametrize("share_per_s", [0.0, 0.003])
def test_a_planted_drift_is_found_in_the_anchors(share_per_s, tiny, calibration, tmp_path):
    spec = replace(tiny, anchor_every=1, kernels_per_block=2)
    with planned(spec, CLOCKS) as (plain, plan, key):
        # A gain that grows with time, as a shunt's does that warms.
        creeping = Distorting(plain.sensors[0], lambda part: part.power_w * (1.0 + share_per_s * part.host_ns * 1e-9))
        bench = replace(plain, sensors=(creeping,))
        outcome = Campaign(bench, spec, plan, key, tmp_path / "d.parquet", calibration=calibration).run()
    assert (outcome.drift["power"] > 0.05) == (share_per_s > 0.0)
