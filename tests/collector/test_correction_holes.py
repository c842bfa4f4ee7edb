"""Recordings with holes of hours to months: what lies beside the load is corrected as if the rest had not been recorded."""

from dataclasses import replace

import numpy as np
import pytest

from collector.sensing.correct import correct_recording
from collector.sensing.updates import board_updates
from tests.collector.made_readings import made

HOLES_S = (2e3, 1e9)


@pytest.fixture(scope="module")
def record():
    starts = 1.5 + np.cumsum(0.127 + np.random.default_rng(11).uniform(-3e-3, 3e-3, 60))
    return made("boxcar", 0.025, 0.1, starts, 0.058, seed=11)


@pytest.mark.parametrize("hole_s", HOLES_S)
@pytest.mark.parametrize("before", [True, False])
def test_what_lies_beyond_a_hole_does_not_change_the_load(record, hole_s, before):
    alone = correct_recording(record.time_s, record.power_w, record.calibration, record.load)
    shift_s = float(np.ptp(record.time_s)) + hole_s
    time_s = np.concatenate([record.time_s, record.time_s + shift_s])
    load = record.load.moved(shift_s) if before else record.load
    found = correct_recording(time_s, np.tile(record.power_w, 2), record.calibration, load)
    assert found.repeated.energy_j == pytest.approx(alone.repeated.energy_j, rel=1e-4)
    assert found.repeated.energy_std_j == pytest.approx(alone.repeated.energy_std_j, rel=0.01)
    assert len(found.updates.time_s) == pytest.approx(len(alone.updates.time_s), abs=2)


@pytest.mark.parametrize("hole_s", HOLES_S)
@pytest.mark.parametrize("part", [0.02, 0.98])
def test_no_updates_are_made_up_in_a_hole(record, hole_s, part):
    """By polls that show a clock, and by too few that do: no more updates than of the recording without the hole."""
    cut = int(part * len(record.time_s))
    for kept in (slice(None), slice(cut - 12, cut + 12)):
        polls_s, power_w = record.time_s[kept], record.power_w[kept]
        held = np.where(np.arange(len(record.time_s))[kept] >= cut, hole_s, 0.0)
        whole, broken = (board_updates(time_s, power_w, record.calibration) for time_s in (polls_s, polls_s + held))
        assert len(broken.time_s) <= len(whole.time_s) + 3
        away = np.min(np.abs(broken.time_s[:, None] - (polls_s + held)[None, :]), axis=1)
        assert away.max() < 1.5 * whole.period_s, "updates where nobody polled"


def test_a_hole_within_a_load_keeps_both_sides(record):
    middle_s = float(record.load.end_s[29]) + 0.01
    shift = np.where(record.time_s > middle_s, 30.0, 0.0)
    later = np.where(record.load.start_s > middle_s, 30.0, 0.0)
    load = replace(record.load, start_s=record.load.start_s + later, end_s=record.load.end_s + later)
    found = correct_recording(record.time_s + shift, record.power_w, record.calibration, load)
    assert found.repeated.executions == 60
    assert "gaps" in found.notes
