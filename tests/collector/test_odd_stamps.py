"""Stamps that run backwards or are no time: a few rows are left out, more are refused, and none is moved."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import SensorError
from collector.recordings.columns import shown_names
from collector.recordings.loads import read_load
from collector.recordings.rows import MOST_LATE, Rows, ordered
from collector.sensing.clock import fit_update_clock
from estimator.vocabulary.quantities import Array

COUNT, POLL_S = 400, 5e-3
TIME_S = 1000.0 + POLL_S * np.arange(COUNT)
POWER_W = 100.0 + np.arange(COUNT) % 50


def read(time_s: Array) -> Rows:
    return ordered(time_s, POWER_W, "log.csv")


@given(place=st.integers(1, COUNT - 1), rows=st.integers(1, COUNT), by_s=st.floats(0.05, 3e4))
def test_late_rows_are_left_out_or_refused_and_no_row_is_moved(place: int, rows: int, by_s: float) -> None:
    time_s = TIME_S.copy()
    time_s[place : place + rows] -= by_s
    late = int(np.count_nonzero(time_s < np.maximum.accumulate(time_s)))
    if late > MOST_LATE * COUNT:
        with pytest.raises(SensorError, match="the clock was set, or rows are in no order"):
            read(time_s)
        return
    found = read(time_s)
    assert set(found.time_s) <= set(time_s)
    assert found.left_out == late


@pytest.mark.parametrize("stamp", [1e12, 1e19, 1e99])
@pytest.mark.parametrize("place", [0, COUNT - 1])
def test_a_stamp_that_is_no_time_is_refused(stamp: float, place: int) -> None:
    time_s = TIME_S.copy()
    time_s[place] = stamp
    with pytest.raises(SensorError, match="are no seconds|the clock was set"):
        read(time_s)
    for factor in (1e3, 1e6, 1e9):
        with pytest.raises(SensorError, match="are no seconds"):
            read((1.7e9 + TIME_S) * factor)


def test_a_load_at_no_time_is_refused_in_a_short_line(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("t_s,level\n1.0,1\n1e90,0\n")
    with pytest.raises(SensorError, match=r"row 3 is 1e\+90: no time in seconds") as caught:
        read_load(path)
    assert len(str(caught.value)) < len(str(path)) + 80


def test_names_of_damaged_files_are_shown_escaped() -> None:
    shown = shown_names(["t_s", "a\x00\x1b[31m", "für", "\ufffd" * 300])
    assert shown.startswith(r"t_s, a\x00\x1b[31m, für, \ufffd")
    assert len(shown) < 130


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("off", [0.0, 0.3])
def test_the_periods_error_holds_a_clock_that_was_put_forward(seed: int, off: float) -> None:
    random = np.random.default_rng(seed)
    period_s = 0.0667
    ticks = period_s * (random.random() + np.arange(180)) + 3e-4 * random.normal(size=180)
    time_s = np.arange(0.1, ticks[-1], POLL_S) + 3e-4 * random.random(len(np.arange(0.1, ticks[-1], POLL_S)))
    number = np.searchsorted(ticks, time_s)
    value = random.normal(100.0, 20.0, number.max() + 1)[number]
    clock, _ = fit_update_clock(np.where(time_s > 6.0, time_s + (30.0 + off) * period_s, time_s), value)
    assert abs(clock.period_s - period_s) < 3.0 * clock.period_std_s
    whole, _ = fit_update_clock(time_s, value)
    assert clock.period_std_s < 10.0 * whole.period_std_s, "and is no larger than the stretches leave it"
