"""What a card and its surroundings may do, planted: each is survived, and flagged or reported in what is measured."""

import re
from dataclasses import replace

import numpy as np
import pytest

from collector.bench import open_bench
from collector.campaigns.context_guard import GuardedRunner, guarded_bench
from collector.campaigns.files import MeasurementSettings
from collector.campaigns.measurement import Point, measure_kernel
from collector.campaigns.running import Campaign, warm_up
from collector.devices.protocols import THROTTLE_BITS
from collector.devices.tracer import NOT_TRACED
from collector.sampling import Sampler
from collector.simulated.profile import Faults
from microbench.sizing import launches_for
from tests.collector.campaigns import Distorting, collected, planned
from tests.collector.dataset_rows import addition, product, rows_to_table

BOARD = "sim:h100-sxm"
CLOCKS = (900.0,)
TRACED = re.compile("kernel_name|registers|shared_bytes|blocks_per_sm|tile_|stages|split_k|grid_|block_")
"""Columns that only a trace tells."""

LARGE = product(8192, precision="bf16")
ADD = addition(2**26, "bf16")


def point(operator, **changes):
    return Point(row_id="r", operator=operator, l2_state="warm", sm_clock_mhz=None, trial=0, seed=0, **changes)


def rows(calibration, points, faults, settings=MeasurementSettings()):  # noqa: B008 (frozen)
    with open_bench(BOARD, seed=5, faults=faults) as bench:
        sampler = Sampler(bench.gpu, bench.sensors)
        return [measure_kernel(bench, sampler, one, settings, calibration) for one in points]


@pytest.mark.parametrize("lag_s", [0.005, 0.03, 0.1])
def test_the_limit_takes_hold_with_its_time_constant_and_ends_where_it_ends_without(lag_s):
    ends = []
    for faults in (Faults(), Faults(limit_lag_s=lag_s)):
        with open_bench(BOARD, faults=faults) as bench:
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
    (row,) = rows(calibration, [point(LARGE)], Faults(limit_lag_s=lag_s))
    assert "throttled" in row["flags"]
    assert row["throttle_reasons"] & THROTTLE_BITS["sw_power_cap"]
    assert row["sm_clock_measured_mhz"] < 1900.0
    assert not {"range_mismatch", "clock_varied"} & set(row["flags"])


def test_a_timed_run_has_the_clock_of_its_own_launches_where_calls_are_slow(calibration):
    settings = MeasurementSettings(timed_s=0.15)
    found = rows(calibration, [point(ADD, timed_only=True)] * 12, Faults(call_s=0.012), settings)
    assert {row["sm_clock_measured_mhz"] for row in found} == {1980.0}
    assert all("power_missing" not in row["flags"] for row in found)


def test_slow_calls_cost_time_and_readings_but_no_power(calibration):
    quick, slow = (rows(calibration, [point(ADD)], faults)[0] for faults in (Faults(), Faults(call_s=0.012)))
    assert slow["power_w"] == pytest.approx(quick["power_w"], rel=0.01)
    assert "sensor_stuck" not in slow["flags"]


@pytest.mark.parametrize(
    "faults, trace, why", [(Faults(late_trace_share=1.0), True, "too late"), (Faults(), False, NOT_TRACED), (Faults(), True, "")]
)
def test_a_kernel_without_a_trace_runs_without_a_name(calibration, faults, trace, why):
    with open_bench(BOARD, faults=faults, trace=trace) as bench:
        prepared = bench.runner.prepare(LARGE)
        assert why in prepared.untraced
        assert bool(prepared.kernel_name) == (not why)
        assert bench.runner.run(prepared, 3).segment_s.mean() > 0.0
        row = measure_kernel(bench, Sampler(bench.gpu, bench.sensors), point(LARGE), MeasurementSettings(), calibration)
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


def test_a_foreign_process_is_seen_for_as_long_as_it_computes(tiny):
    with planned(tiny, CLOCKS, faults=Faults(foreign_share=1.0)) as (bench, _, _):
        assert bench.gpu.state().other_processes == ()
        warm_up(bench, 1.0)
        assert bench.gpu.state().other_processes == (4242,)


@pytest.mark.parametrize("share_per_s", [0.0, 0.003])
def test_a_planted_drift_is_found_in_the_anchors(share_per_s, tiny, calibration, tmp_path):
    spec = replace(tiny, anchor_every=1, kernels_per_block=2)
    with planned(spec, CLOCKS) as (plain, plan, key):
        # A gain that grows with time, as a shunt's does that warms.
        creeping = Distorting(plain.sensors[0], lambda part: part.power_w * (1.0 + share_per_s * part.host_ns * 1e-9))
        bench = replace(plain, sensors=(creeping,))
        outcome = Campaign(bench, spec, plan, key, tmp_path / "d.parquet", calibration=calibration).run()
    assert (outcome.drift["power"] > 0.05) == (share_per_s > 0.0)
