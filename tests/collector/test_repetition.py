"""What disturbs a campaign: faults planted in the simulated board are flagged or reported."""

from dataclasses import replace

import pytest

from collector.campaigns.running import Campaign, warm_up
from collector.simulated.profile import Faults
from tests.collector.campaigns import Distorting, collected, planned

CLOCKS = (900.0,)


@pytest.mark.parametrize(
    ("faults", "flag"),
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
