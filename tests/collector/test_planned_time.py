"""What a plan says of the time before its first kernel, and what a budget that had none for one leaves behind."""

from dataclasses import replace

import pytest

from collector.bench import open_bench
from collector.campaigns.plan import chosen_plan, plan_campaign
from collector.campaigns.running import Campaign, campaign_key
from collector.campaigns.selection import hastened
from collector.dataset import read_kernel_dataset
from collector.errors import CampaignError
from collector.sampling import Sampler
from collector.sensing.live import characterisation_s, characterise_sensor
from collector.simulated.profile import board_names
from tests.collector.campaigns import BOARD, planned


def test_a_sensor_takes_as_long_as_is_planned_for_it():
    with open_bench(BOARD, seed=3, meter=True) as bench:
        begun_ns = bench.clock.now_ns()
        characterise_sensor(bench, Sampler(bench.gpu, bench.sensors))
        took_s = (bench.clock.now_ns() - begun_ns) * 1e-9
    assert took_s == pytest.approx(characterisation_s(), rel=0.02)


def test_a_known_sensor_takes_no_time(tiny):
    with open_bench(BOARD) as bench:
        unknown, known = (plan_campaign(tiny, (900.0,), (), 0, bench, sensor_known=one).estimated_s for one in (False, True))
    assert unknown - known == pytest.approx(characterisation_s(), rel=0.02)


@pytest.mark.parametrize("board", board_names())
@pytest.mark.parametrize("part", [1.0, 0.3])
def test_a_campaign_takes_as_long_and_as_much_as_its_plan_states(board, part, tiny, tmp_path):
    """Preparation as planted included; the energy is a rule of thumb."""
    with open_bench(f"sim:{board}", seed=4) as bench:
        spec, plan = tiny, plan_campaign(tiny, (600.0, 900.0), (), 0, bench)
        if part < 1.0:
            spec = hastened(tiny)
            plan = chosen_plan(spec, plan, bench.gpu_spec, plan.fixed_s + part * (plan.estimated_s - plan.fixed_s), 0)
        begun_ns = bench.clock.now_ns()
        Campaign(bench, spec, plan, campaign_key(bench, spec, plan, (), 0), tmp_path / "d.parquet").run()
        took_s = (bench.clock.now_ns() - begun_ns) * 1e-9
        took_j = bench.planted_energy_j(begun_ns, bench.clock.now_ns())
    assert plan.estimated_s == pytest.approx(took_s, rel=0.15)
    assert plan.estimated_j == pytest.approx(took_j, rel=0.35)


def test_a_budget_that_ends_before_the_first_row_leaves_nothing_and_a_larger_one_begins_anew(tiny, calibration, tmp_path):
    output = tmp_path / "d.parquet"
    with planned(tiny, (900.0,)) as (bench, whole, key):
        plan = replace(whole, fixed_s=0.0)  # the sensor takes longer than anybody could know
        with pytest.raises(CampaignError, match="nothing was measured: the budget ended before the first row"):
            Campaign(bench, tiny, plan, key, output, budget_s=25.0).run()
        assert list(tmp_path.iterdir()) == []
        outcome = Campaign(bench, tiny, plan, key, output, calibration=calibration, budget_s=25.0).run()
    assert 0 < outcome.rows == read_kernel_dataset(output).table.num_rows
