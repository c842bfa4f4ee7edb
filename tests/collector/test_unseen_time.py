"""Recordings with holes of a second to months: errors hold what was drawn unseen, what lies beside the load changes nothing."""

from dataclasses import replace

import numpy as np
import pytest

from collector.sensing.correct import correct_recording
from collector.sensing.deconvolve import unread_std_j as unseen_std_j
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates, board_updates
from tests.collector.made_readings import made

PERIOD_S = 0.1
BOXCAR = SensorResponse(kernel="boxcar", width_s=PERIOD_S, delay_s=0.0)
REST_W, LOAD_W, END_S = 60.0, 240.0, 20.0


def updates(holes, end_s=END_S):
    """Updates of a board that rests for a second and then works, but for those in the holes."""
    time_s = np.arange(PERIOD_S, end_s + 1e-9, PERIOD_S)
    kept = np.all([(time_s < start) | (time_s > end) for start, end in holes], axis=0) if holes else np.full(len(time_s), True)
    return time_s[kept], np.where(time_s > 1.0 + 1e-9, LOAD_W, REST_W)[kept]


def unseen(holes, response=BOXCAR, begin_s=0.0, end_s=END_S):
    time_s, value = updates(holes)
    seen = BoardUpdates(time_s=time_s, value=value, period_s=PERIOD_S, time_std_s=0.0, note="")
    return unseen_std_j(seen, response, begin_s, end_s)


def boxcar(width_s):
    return SensorResponse(kernel="boxcar", width_s=width_s, delay_s=0.0)


@pytest.mark.parametrize(
    "holes, width_s, open_s",
    [
        ([], 0.1, 0.0),
        ([(4.001, 5.001)], 0.1, 1.0),
        ([(4.001, 8.001)], 0.1, 4.0),
        ([(3.001, 4.001), (6.001, 8.001)], 0.1, 5.0**0.5),
        ([(4.001, 4.401)], 0.025, 0.475),
        ([(4.001, 4.801)], 1.0, 0.0),
    ],
    ids=["none", "a second", "four", "independent", "narrow window", "seen by a wide one"],
)
def test_a_hole_leaves_open_what_no_window_covers(holes, width_s, open_s):
    """Power anywhere between two bounds, taken for one of them, is off by their distance over √3 (rms)."""
    expected = open_s * (LOAD_W - REST_W) / 3.0**0.5
    assert unseen(holes, boxcar(width_s)) == pytest.approx(expected, rel=0.01, abs=1e-3 * LOAD_W * END_S)


def test_a_hole_outside_of_the_span_costs_nothing():
    assert unseen([(4.001, 6.001)], begin_s=7.0, end_s=11.0) == pytest.approx(unseen([], begin_s=7.0, end_s=11.0), abs=1e-6)


@pytest.mark.parametrize("starts_s, length_s", [((1.0, 5.1), 2.8), ((1.0, 8.3), 3.9)], ids=["works", "rests"])
def test_stated_errors_hold_what_a_board_did_in_a_hole(starts_s, length_s):
    """A board that does in the hole what it did not do on either side."""
    case, hole_s = made("boxcar", PERIOD_S, PERIOD_S, np.array(starts_s), length_s, seed=4), (4.9, 8.3)
    kept = (case.time_s < hole_s[0]) | (case.time_s > hole_s[1])
    span = correct_recording(case.time_s[kept], case.power_w[kept], case.calibration).span
    assert abs(span.energy_j - case.energy_j(span.start_s, span.end_s)) < 2.0 * span.energy_std_j
    assert span.energy_std_j < (hole_s[1] - hole_s[0]) * np.ptp(case.power_w)


@pytest.mark.parametrize("every", [33, 82, 164])
def test_stated_errors_hold_what_polls_slower_than_the_updates_missed(every):
    """A reading holds for one update, not until the next poll (`nvidia-smi -l 1`)."""
    case = made("boxcar", PERIOD_S, PERIOD_S, np.array([1.0, 2.2, 4.9, 6.0, 9.1, 12.7]), 0.9, seed=4)
    span = correct_recording(case.time_s[::every], case.power_w[::every], case.calibration).span
    assert abs(span.energy_j - case.energy_j(span.start_s, span.end_s)) < span.energy_std_j


ABSENT_S = (2e3, 1e9)


@pytest.fixture(scope="module")
def record():
    starts = 1.5 + np.cumsum(0.127 + np.random.default_rng(11).uniform(-3e-3, 3e-3, 60))
    return made("boxcar", 0.025, 0.1, starts, 0.058, seed=11)


@pytest.mark.parametrize("hole_s", ABSENT_S)
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


@pytest.mark.parametrize("hole_s", ABSENT_S)
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
