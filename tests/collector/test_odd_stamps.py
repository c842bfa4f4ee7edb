"""Stamps that slipped: the row is left out and nothing behind it is moved; a clock that was set back is told from it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import SensorError
from collector.recordings.loads import read_load
from collector.recordings.ordering import Ordered, ordered
from collector.recordings.text_columns import shown_names
from collector.sensor.update_clock import fit_update_clock
from estimator.quantities import Array

COUNT, POLL_S = 400, 5e-3
TIME_S = 1000.0 + POLL_S * np.arange(COUNT)
POWER_W = 100.0 + np.arange(COUNT) % 50


def read(time_s: Array) -> Ordered:
    return ordered(time_s, POWER_W, "log.csv", local_time=False)


@given(
    place=st.integers(0, COUNT - 1),
    rows=st.integers(1, 3),
    by_s=st.floats(0.05, 3e4).flatmap(lambda size: st.sampled_from([size, -size])),
)
def test_rows_that_slipped_are_left_out_and_no_other_is_moved(place: int, rows: int, by_s: float) -> None:
    time_s = TIME_S.copy()
    time_s[place : place + rows] += by_s
    at_end = (place == 0 and by_s < 0.0) or (place + rows >= COUNT and by_s > 0.0)
    if at_end and abs(by_s) < 1.1:
        return  # nothing tells them from rows beside a short hole
    found = read(time_s)
    assert set(found.time_s) <= set(TIME_S)
    assert len(found.time_s) == COUNT - min(rows, COUNT - place)
    assert found.left_out == COUNT - len(found.time_s)
    assert "left out" in " ".join(found.remarks)
    assert "set back" not in " ".join(found.remarks)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("by_s", [1.1, 40.0, 3e4])
@pytest.mark.parametrize("first", [True, False])
def test_a_few_first_or_last_rows_that_slipped_away_are_left_out(rows: int, by_s: float, first: bool) -> None:
    place = np.arange(COUNT)
    found = read(TIME_S + (np.where(place < rows, -by_s, 0.0) if first else np.where(place >= COUNT - rows, by_s, 0.0)))
    assert found.time_s.tolist() == (TIME_S[rows:] if first else TIME_S[:-rows]).tolist()
    assert found.left_out == rows
    assert f"{rows} row(s) left out: their stamps do not fit those beside them" in " ".join(found.remarks)


@pytest.mark.parametrize("rows", [4, 20])
@pytest.mark.parametrize("first", [True, False])
def test_more_rows_beyond_a_hole_than_slip_stay(rows: int, first: bool) -> None:
    place = np.arange(COUNT)
    time_s = TIME_S + np.where(place < rows, -40.0, 0.0) if first else TIME_S + np.where(place >= COUNT - rows, 40.0, 0.0)
    assert len(read(time_s).time_s) == COUNT


@pytest.mark.parametrize(("rows", "by_s"), [(1, 0.3), (2, 0.3), (20, 0.3), (1, 30.0), (20, 30.0), (150, 30.0)])
def test_a_clock_put_forward_and_back_again_moves_nothing(rows: int, by_s: float) -> None:
    time_s = TIME_S.copy()
    time_s[200 : 200 + rows] += by_s
    found = read(time_s)
    assert set(found.time_s) <= set(TIME_S)
    assert found.left_out == rows


@pytest.mark.parametrize("by_s", [0.05, 0.3, 30.0])
def test_a_clock_that_was_set_back_for_good_is_moved_on(by_s: float) -> None:
    found = read(TIME_S - by_s * (np.arange(COUNT) >= 150))
    assert found.left_out == 0
    assert found.time_s == pytest.approx(TIME_S, abs=POLL_S)
    assert "set back" in " ".join(found.remarks)


@pytest.mark.parametrize("stamp", [1e12, 1e16, 1e19, 1e300, -1e300])
@pytest.mark.parametrize("place", [0, 49, COUNT - 1])
def test_a_stamp_that_is_no_time_is_left_out_and_its_row_named(stamp: float, place: int) -> None:
    time_s = TIME_S.copy()
    time_s[place] = stamp
    found = read(time_s)
    assert found.time_s.tolist() == np.delete(TIME_S, place).tolist()
    assert f"no time can be {stamp:.4g}, the stamp of row {place + 1}" in " ".join(found.remarks)


def test_stamps_none_of_which_are_times_are_refused_in_one_line() -> None:
    with pytest.raises(SensorError, match=r"t_s of 400 of 400 rows is no time, the first 1e\+300"):
        read(np.full(COUNT, 1e300))
    for factor, unit in ((1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "microseconds")):
        with pytest.raises(SensorError, match=unit):
            read((1.7e9 + TIME_S) * factor)


def test_a_load_at_no_time_is_refused_in_a_short_line(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("t_s,level\n1.0,1\n1e300,0\n")
    with pytest.raises(SensorError, match=r"row 3 is 1e\+300: no time in seconds") as caught:
        read_load(path)
    assert len(str(caught.value)) < len(str(path)) + 80


def test_names_of_damaged_files_are_shown_escaped() -> None:
    shown = shown_names(["t_s", "a\x00\x1b[31m", "für", "\ufffd" * 300])
    assert shown.startswith(r"t_s, a\x00\x1b[31m, für, \ufffd")
    assert len(shown) < 130


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("off", [0.0, 0.02, 0.3])
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
